/* equation: parses einsum's text, e.g. "bij,bjk->bik", into labels. */
#include "pass_int.h"

static int letter(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1; }

int cc_equation_letters(const char *text, bool *dots) {
    int n = 0;
    for (*dots = false; *text && *text != ',' && *text != '-'; text++) {
        if (*text == '.') {
            if (*dots || text[1] != '.' || text[2] != '.') return -1;
            *dots = true;
            text += 2;
        } else if (letter(*text) < 0) {
            return -1;
        } else {
            n++;
        }
    }
    return n;
}

const char *cc_equation_labels(const char *text, int hidden, int *label) {
    for (; *text && *text != ',' && *text != '-'; text++) {
        if (*text != '.') {
            *label++ = letter(*text);
            continue;
        }
        /* dims behind an ellipsis align at the last one */
        for (int i = 0; i < hidden; i++) *label++ = CC_LETTERS + CC_MAX_DIMS - hidden + i;
        text += 2;
    }
    return text;
}

int cc_equation_implicit(const char *text, int hidden, int *label) {
    int count[CC_LETTERS] = {0}, n = 0;
    for (; *text; text++)
        if (letter(*text) >= 0) count[letter(*text)]++;
    for (int i = 0; i < hidden && n < CC_MAX_DIMS; i++) label[n++] = CC_LETTERS + CC_MAX_DIMS - hidden + i;
    for (int i = 0; i < CC_LETTERS && n < CC_MAX_DIMS; i++)
        if (count[i] == 1) label[n++] = i;
    return n;
}
