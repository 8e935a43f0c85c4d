/* dl: the only file that loads shared libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

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

void *cc_dl_beside(const void *inside, const char *name) {
    Dl_info info;
    char path[1024];
    if (!dladdr(inside, &info) || !info.dli_fname) return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    const int n = slash ? (int)(slash - info.dli_fname) : 0;
    if (!slash || snprintf(path, sizeof path, "%.*s/%s", n, info.dli_fname, name) >= (int)sizeof path) return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void *cc_dl_symbol(void *handle, const char *name) { return dlsym(handle ? handle : RTLD_DEFAULT, name); }

int cc_dl_bind(void *handle, const CcDlRow *rows, int n, CcErr *err) {
    for (int i = 0; i < n; i++) {
        *rows[i].slot = cc_dl_symbol(handle, rows[i].name);
        if (!*rows[i].slot) return cc_err_set(err, CC_E_MISSING, "the library has no %s", rows[i].name);
    }
    return 0;
}

/* ------------------------------------------------------------------ dropping resident pages */

typedef struct Library {
    const struct dl_phdr_info *info;
    uintptr_t inside;
} Library;

static uintptr_t begin_of(const Library *lib, int i) { return lib->info->dlpi_addr + lib->info->dlpi_phdr[i].p_vaddr; }
static uintptr_t end_of(const Library *lib, int i) { return begin_of(lib, i) + lib->info->dlpi_phdr[i].p_memsz; }

static bool contains(const Library *lib) {
    for (int i = 0; i < lib->info->dlpi_phnum; i++)
        if (lib->info->dlpi_phdr[i].p_type == PT_LOAD && lib->inside >= begin_of(lib, i) &&
            lib->inside < end_of(lib, i))
            return true;
    return false;
}

/* Did the loader patch the code? Then its pages differ from the file. */
static bool has_text_relocations(const Library *lib) {
    for (int i = 0; i < lib->info->dlpi_phnum; i++) {
        if (lib->info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const ElfW(Dyn) *)begin_of(lib, i); d->d_tag != DT_NULL; d++)
            if (d->d_tag == DT_TEXTREL || (d->d_tag == DT_FLAGS && d->d_un.d_val & DF_TEXTREL)) return true;
    }
    return false;
}

/* Drops read-only segments, whole pages only: the rest of a page may belong to a writable segment. */
static int forget(struct dl_phdr_info *info, size_t size, void *ctx) {
    Library *lib = ctx;
    (void)size;
    lib->info = info;
    if (!contains(lib)) return 0;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < info->dlpi_phnum && !has_text_relocations(lib); i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || info->dlpi_phdr[i].p_flags & PF_W) continue;
        const uintptr_t begin = (begin_of(lib, i) + page - 1) / page * page, end = end_of(lib, i) / page * page;
        /* fails for locked pages, which then stay resident */
        if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    return 1;
}

void cc_dl_forget(void (*inside)(void)) {
    Library lib = {.inside = (uintptr_t)inside};
    dl_iterate_phdr(forget, &lib);
}
