/* A growing string, for printers and messages. */
#include "base.h"

void cc_sbuf_vadd(CcSbuf *sb, const char *fmt, va_list args) {
    va_list copy;
    va_copy(copy, args);
    const int need = vsnprintf(NULL, 0, fmt, args);
    if (need >= 0) {
        if (sb->n + (size_t)need + 1 > sb->cap) {
            sb->cap = CC_MAX((size_t)256, (sb->n + (size_t)need + 1) * 2);
            sb->text = cc_mem_grow(sb->text, sb->cap);
        }
        vsnprintf(sb->text + sb->n, (size_t)need + 1, fmt, copy);
        sb->n += (size_t)need;
    }
    va_end(copy);
}

void cc_sbuf_add(CcSbuf *sb, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    cc_sbuf_vadd(sb, fmt, args);
    va_end(args);
}

const char *cc_sbuf_text(const CcSbuf *sb) { return sb->text != NULL ? sb->text : ""; }

void cc_sbuf_free(CcSbuf *sb) {
    free(sb->text);
    *sb = (CcSbuf){0};
}

void cc_sbuf_whole(char *text) {
    char *lead = text + strlen(text);
    while (lead > text && ((unsigned char)lead[-1] & 0xC0) == 0x80) lead--;
    if (lead == text) return;
    const unsigned char first = (unsigned char)*--lead;
    const size_t needs = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (strlen(lead) < needs) *lead = '\0';
}
