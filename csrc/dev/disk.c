/* disk: the on-disk cache of machine code, tuning results and verdicts.
 *
 * A file's name is a hash of its key (compiler, options, source). The file holds
 *
 *     header | key | machine code          readers compare the key, so a hash collision costs one compilation; the key
 *                                          also contains the program's source, for inspection
 *
 * Files are written under a temporary name and renamed, so readers never see half a file. A checksum detects damage;
 * damaged entries are compiled again. As entries are executed, folders and files that others may write are ignored, with
 * an event (docs/security.md). A folder is opened once per access and checked through its descriptor, and its files are
 * reached through that, so nobody can exchange it in between. A folder that can't be created, read or written is no
 * error: nothing is cached. Each kind has a size limit (CCOMPILE_CACHE_LIMIT), beyond which the oldest files are
 * deleted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev.h"

enum { PATH_BYTES = 1024, DIGITS = 32, NAME_BYTES = 64, LIMIT_MIB = 256, MAX_BYTES = 1 << 28 };
#define MAGIC UINT64_C(0x314e494255434343)

typedef struct Header {
    uint64_t magic, key_bytes, image_bytes, sum; /* sum: checksum of key and image */
} Header;

static const char *const FOLDER[] = {
    [CC_DISK_KERNEL] = "kernel", [CC_DISK_CUBIN] = "cubin", [CC_DISK_TUNING] = "tuning", [CC_DISK_VERDICT] = "verdict"};

/* Does the folder belong to another user than this one or root? What root makes in somebody's home is in that user's
 * hands, and in the way of that user's own cache. */
static bool is_anothers(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && st.st_uid != 0 && st.st_uid != geteuid();
}

/* CCOMPILE_CACHE_DIR (empty: no cache), XDG_CACHE_HOME/ccompile, ~/.cache/ccompile. */
static bool find_folder(CcDiskKind kind, char *out) {
    const char *own = getenv("CCOMPILE_CACHE_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (own) n = *own ? snprintf(out, PATH_BYTES, "%s/%s", own, FOLDER[kind]) : -1;
    else if (cache && *cache == '/')
        n = is_anothers(cache) ? -1 : snprintf(out, PATH_BYTES, "%s/ccompile/%s", cache, FOLDER[kind]);
    else if (home && *home == '/')
        n = is_anothers(home) ? -1 : snprintf(out, PATH_BYTES, "%s/.cache/ccompile/%s", home, FOLDER[kind]);
    return n > 0 && n < PATH_BYTES - 64;
}

/* 0: the folder is there, else the reason why it can't be made. */
static int make_folders(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

/* Is this a file or folder (type: S_IFREG, S_IFDIR) that only this user and root may write? Where an access control list
 * lets others write, the mode's bits of the group say so (acl(5)). Tells once per kind of another one that lies there. */
static bool is_private(CcDiskKind kind, const char *name, const struct stat *st, mode_t type) {
    static atomic_bool told[CC_COUNT(FOLDER)];
    if ((st->st_mode & S_IFMT) == type && st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH))) return true;
    if (!atomic_exchange(&told[kind], true))
        cc_log_add(CC_LOG_IGNORED,
                   "%s in the cache is not used: its owner is user %ld, its mode %o, and others may write it", name,
                   (long)st->st_uid, (unsigned)st->st_mode);
    return false;
}

static void tell_unusable(const char *path, int why) {
    static atomic_bool told;
    if (!atomic_exchange(&told, true))
        cc_log_add(CC_LOG_IGNORED,
                   "the cache %s can't be used (%s): other processes will compile again; CCOMPILE_CACHE_DIR names "
                   "a folder that can be written, or is empty: no cache",
                   path, strerror(why));
}

/* The folder of a kind; -1: there is none that only this user may write. */
static int open_folder(CcDiskKind kind, bool make) {
    char path[PATH_BYTES];
    struct stat st;
    if (!find_folder(kind, path)) return -1;
    const int why = make ? make_folders(path) : 0;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (make && fd < 0) tell_unusable(path, why ? why : errno);
    if (fd >= 0 && fstat(fd, &st) == 0 && is_private(kind, path, &st, S_IFDIR)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static uint64_t sum_of(const char *key, size_t n, const CcBlob *image) {
    return cc_map_hash(image->at, image->n, cc_map_hash(key, n, MAGIC));
}

typedef struct Name {
    CcDiskKind kind;
    char digits[DIGITS + 1];
} Name;

static Name name_of(CcDiskKind kind, const char *key, size_t n) {
    Name name = {.kind = kind};
    snprintf(name.digits, sizeof name.digits, "%016llx%016llx", (unsigned long long)cc_map_hash(key, n, 1),
             (unsigned long long)cc_map_hash(key, n, 2));
    return name;
}

static bool read_parts(int fd, int64_t bytes, CcBlob *key, CcBlob *image) {
    Header h;
    if (bytes > MAX_BYTES || !cc_io_read(fd, &h, sizeof h) || h.magic != MAGIC || h.key_bytes == 0 ||
        h.image_bytes == 0 || h.key_bytes >= (uint64_t)bytes || (uint64_t)bytes - sizeof h <= h.key_bytes ||
        h.image_bytes != (uint64_t)bytes - sizeof h - h.key_bytes)
        return false;
    *key = (CcBlob){malloc(h.key_bytes), h.key_bytes};
    *image = (CcBlob){malloc(h.image_bytes), h.image_bytes};
    return key->at && image->at && cc_io_read(fd, key->at, key->n) && cc_io_read(fd, image->at, image->n) &&
           sum_of(key->at, key->n, image) == h.sum;
}

/* The key and the image of an undamaged file that nobody else may write. O_NONBLOCK: a pipe of that name must not be
 * waited for. */
static bool read_file(const Name *name, CcBlob *key, CcBlob *image) {
    *key = *image = (CcBlob){0};
    const int folder = open_folder(name->kind, false);
    if (folder < 0) return false;
    const int fd = openat(folder, name->digits, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    close(folder);
    if (fd < 0) return false;
    struct stat st;
    const bool ok = fstat(fd, &st) == 0 && is_private(name->kind, name->digits, &st, S_IFREG) &&
                    read_parts(fd, st.st_size, key, image);
    close(fd);
    if (ok) return true;
    free(key->at);
    free(image->at);
    *key = *image = (CcBlob){0};
    return false;
}

static void write_file(int folder, const char *name, const char *key, size_t n, const CcBlob *image) {
    static atomic_uint serial;
    char beside[NAME_BYTES];
    snprintf(beside, sizeof beside, "%s.%ld.%u", name, (long)getpid(), atomic_fetch_add(&serial, 1));
    const int fd = openat(folder, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const Header h = {MAGIC, n, image->n, sum_of(key, n, image)};
    bool ok = cc_io_write(fd, &h, sizeof h) && cc_io_write(fd, key, n) && cc_io_write(fd, image->at, image->n);
    ok = close(fd) == 0 && ok;
    if (!ok || renameat(folder, beside, folder, name) < 0) (void)unlinkat(folder, beside, 0);
}

/* ------------------------------------------------------------------ the limit */

typedef struct Kept {
    char name[NAME_BYTES];
    int64_t written; /* ns */
    int64_t bytes;   /* allocated on disk */
} Kept;

typedef CC_VEC(Kept) KeptList;

static int by_age(const void *a, const void *b) {
    const int64_t x = ((const Kept *)a)->written, y = ((const Kept *)b)->written;
    return (x > y) - (x < y);
}

/* Lists our own files, including temporary files of dead processes. Ignores foreign files in the folder. */
static int64_t list_files(DIR *dir, KeptList *out) {
    int64_t total = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (strspn(e->d_name, "0123456789abcdef") != DIGITS || strlen(e->d_name) >= NAME_BYTES) continue;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode)) continue;
        Kept one = {.written = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
                    .bytes = st.st_blocks * INT64_C(512)};
        memcpy(one.name, e->d_name, strlen(e->d_name));
        total += one.bytes;
        cc_vec_push(out, one);
    }
    return total;
}

/* Deletes the oldest files down to 3/4 of the limit, so that not every new file triggers a sweep. */
static void sweep(int folder, int64_t limit) {
    const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (!dir && own >= 0) close(own);
    if (!dir) return;
    KeptList kept = {0};
    int64_t total = list_files(dir, &kept);
    if (total > limit) {
        qsort(kept.at, (size_t)kept.n, sizeof *kept.at, by_age);
        for (int i = 0; i < kept.n && total > limit / 4 * 3; i++) {
            if (unlinkat(dirfd(dir), kept.at[i].name, 0) == 0) total -= kept.at[i].bytes;
        }
    }
    cc_vec_free(&kept);
    closedir(dir);
}

/* Sweeps at the process's first write to the folder, then after every 1/16 of the limit written. */
static void keep_limit(CcDiskKind kind, int folder, size_t written) {
    static atomic_llong left[CC_COUNT(FOLDER)];
    const char *text = getenv("CCOMPILE_CACHE_LIMIT");
    char *end = NULL;
    const long mib = text ? strtol(text, &end, 10) : LIMIT_MIB;
    const bool wrong = text && (end == text || *end || mib < 0 || mib > INT32_MAX);
    static atomic_bool told;
    if (wrong && !atomic_exchange(&told, true))
        cc_log_add(CC_LOG_IGNORED, "CCOMPILE_CACHE_LIMIT is '%.60s', not a number of MiB in 0..%d: the limit is %d MiB",
                   text, INT32_MAX, LIMIT_MIB);
    const int64_t limit = (int64_t)(wrong ? LIMIT_MIB : mib) << 20;
    if (atomic_fetch_sub(&left[kind], (long long)written) >= (long long)written) return;
    atomic_store(&left[kind], limit / 16);
    sweep(folder, limit);
}

/* ------------------------------------------------------------------ get and put */

/* The files that this process has read or written, each once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Name) used;

static void note_use(const Name *name) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < used.n && (used.at[i].kind != name->kind || strcmp(used.at[i].digits, name->digits) != 0)) i++;
    if (i == used.n) cc_vec_push(&used, *name);
    pthread_mutex_unlock(&lock);
}

bool cc_disk_used(int i, const char **kind, CcBlob *key, CcBlob *image) {
    pthread_mutex_lock(&lock);
    const bool found = i < used.n;
    const Name name = found ? used.at[i] : (Name){0};
    pthread_mutex_unlock(&lock);
    *key = *image = (CcBlob){0};
    *kind = FOLDER[name.kind];
    if (found) (void)read_file(&name, key, image);
    return found;
}

bool cc_disk_get(CcDiskKind kind, const char *key, size_t n, CcBlob *out) {
    CcBlob own;
    const Name name = name_of(kind, key, n);
    if (!read_file(&name, &own, out)) return false;
    const bool same = own.n == n && memcmp(own.at, key, n) == 0;
    free(own.at);
    if (!same) free(out->at);
    if (same) note_use(&name);
    return same;
}

void cc_disk_put(CcDiskKind kind, const char *key, size_t n, const CcBlob *blob) {
    const Name name = name_of(kind, key, n);
    const int folder = open_folder(kind, true);
    if (folder < 0) return;
    write_file(folder, name.digits, key, n, blob);
    note_use(&name);
    keep_limit(kind, folder, sizeof(Header) + n + blob->n);
    close(folder);
}

bool cc_disk_add(const char *kind, const char *key, size_t n, const CcBlob *image) {
    CcBlob found;
    for (int k = 0; k < CC_COUNT(FOLDER); k++) {
        if (strcmp(FOLDER[k], kind) != 0) continue;
        if (!cc_disk_get((CcDiskKind)k, key, n, &found)) {
            cc_disk_put((CcDiskKind)k, key, n, image);
            if (!cc_disk_get((CcDiskKind)k, key, n, &found)) return false;
        }
        free(found.at);
        return true;
    }
    return false;
}
