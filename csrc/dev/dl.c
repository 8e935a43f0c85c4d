/* dl: the only file that loads shared libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

#include "dev.h"

void *cc_dl_open(const char *path, bool global, CcErr *err) {
    void *handle = path ? dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL)) : NULL;
    if (!handle) cc_err_set(err, CC_E_MISSING, "%s", path ? dlerror() : "not installed");
    return handle;
}

struct Search {
    const char *part;
    char path[1024];
};

static int visit(struct dl_phdr_info *info, size_t size, void *ctx) {
    struct Search *s = ctx;
    (void)size;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!slash || !strstr(slash, s->part) || strlen(info->dlpi_name) >= sizeof s->path) return 0;
    strcpy(s->path, info->dlpi_name);
    return 1;
}

void *cc_dl_loaded(const char *part) {
    struct Search s = {.part = part};
    if (!dl_iterate_phdr(visit, &s)) return NULL;
    return dlopen(s.path, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

void *cc_dl_symbol(void *handle, const char *name) {
    return dlsym(handle ? handle : RTLD_DEFAULT, name);
}

int cc_dl_bind(void *handle, const CcDlRow *rows, int n, CcErr *err) {
    for (int i = 0; i < n; i++) {
        *rows[i].slot = cc_dl_symbol(handle, rows[i].name);
        if (!*rows[i].slot)
            return cc_err_set(err, CC_E_MISSING, "the library has no %s", rows[i].name);
    }
    return 0;
}
