/* settings: tells of environment variables whose values nothing here knows. They have no effect, and a misspelt one would
 * look as if it had. Where each is read says what it does (docs/settings.md). */
#include "run_int.h"

static const struct {
    const char *name;
    const char *allowed[4]; /* besides "" */
} SETTING[] = {
    {"CCOMPILE_BACKEND", {"ref", "cuda"}},   {"CCOMPILE_CPU", {"base", "avx2", "avx512"}},
    {"CCOMPILE_DUMP", {"kernels", "graph"}}, {"CCOMPILE_INSTALL", {"0", "1"}},
    {"CCOMPILE_LIBMVEC", {"0", "1"}},        {"CCOMPILE_LOGS_FORMAT", {"text", "json"}},
    {"CCOMPILE_PROFILE", {"0", "1"}},        {"CCOMPILE_VERIFY", {"0", "1"}},
    {"CCOMPILE_WRITTEN", {"0", "1"}},
};

/* Is the value one of the names? Adds them to `all`. */
static bool is_among(const char *value, const char *const *names, int n, CcSbuf *all) {
    bool found = *value == 0;
    for (int i = 0; i < n && names[i]; i++) {
        found = found || strcmp(value, names[i]) == 0;
        cc_sbuf_add(all, "%s%s", all->n ? ", " : "", names[i]);
    }
    return found;
}

static void check(const char *name, const char *value, bool known, CcSbuf *all, void (*tell)(const CcErr *)) {
    CcErr err = {0};
    (void)cc_err_set(&err, CC_E_UNSUPPORTED, "%s is '%.60s', which nothing here knows; allowed: %s", name, value,
                     cc_sbuf_text(all));
    if (!known) tell(&err);
    cc_sbuf_free(all);
}

void cc_settings_check(void (*tell)(const CcErr *)) {
    for (int i = 0; i < CC_COUNT(SETTING); i++) {
        const char *value = getenv(SETTING[i].name);
        CcSbuf all = {0};
        if (value) check(SETTING[i].name, value, is_among(value, SETTING[i].allowed, 4, &all), &all, tell);
    }
    const char *way = getenv("CCOMPILE_WAY");
    if (!way) return;
    const CcChoiceKind *const kind[] = {cc_ways_kind(), cc_convways_kind()};
    CcSbuf all = {0};
    bool known = false;
    for (int i = 0; i < CC_COUNT(kind); i++) known |= is_among(way, kind[i]->way, kind[i]->n, &all);
    check("CCOMPILE_WAY", way, known, &all, tell);
}
