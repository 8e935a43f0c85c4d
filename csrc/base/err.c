/* Error values and failed assertions. */
#include "base.h"

int cc_err_set(CcErr *err, CcStatus status, const char *fmt, ...) {
    if (err == NULL) return -1;
    err->status = status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return -1;
}

void cc_base_assert_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "ccompile: assertion failed: %s (%s:%d); please report this\n", cond, file, line);
    abort();
}

void cc_base_verify_failed(const char *where, const char *what, const char *text) {
    fprintf(stderr, "ccompile: %s: %s; please report this\n%s", where, what, text);
    abort();
}
