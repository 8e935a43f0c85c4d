/* cubin: machine code of CUDA programs, kept on disk from process to process.
 *
 * A file is named by a hash of its key (NVRTC's version, options, source) and holds
 *
 *     header | key | machine code          the key is compared, so a hash that two programs share costs a compilation, and
 *                                          who looks for a program's source finds it there
 *
 * It is written beside and renamed, so readers see all of it or nothing; a checksum tells a damaged one, which is compiled
 * again. A folder that can't be made, read or written is no error: then nothing is kept. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev.h"

enum { PATH_BYTES = 1024 };
#define MAGIC UINT64_C(0x314e494255434343)

typedef struct Header {
    uint64_t magic, key_bytes, image_bytes, sum; /* sum: of key and image */
} Header;

/* CCOMPILE_CACHE_DIR (empty: nothing is kept), XDG_CACHE_HOME/ccompile, ~/.cache/ccompile. */
static bool find_folder(char *out) {
    const char *own = getenv("CCOMPILE_CACHE_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (own) n = *own ? snprintf(out, PATH_BYTES, "%s/cubin", own) : -1;
    else if (cache && *cache == '/') n = snprintf(out, PATH_BYTES, "%s/ccompile/cubin", cache);
    else if (home && *home == '/') n = snprintf(out, PATH_BYTES, "%s/.cache/ccompile/cubin", home);
    return n > 0 && n < PATH_BYTES - 64;
}

static void make_folders(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
}

static bool read_all(int fd, void *at, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(fd, (char *)at + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *at, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(fd, (const char *)at + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += (size_t)put;
    }
    return true;
}

static uint64_t sum_of(const char *key, size_t n, const CcCubin *image) {
    return cc_map_hash(image->at, image->n, cc_map_hash(key, n, MAGIC));
}

static bool read_file(const char *path, const char *key, size_t n, CcCubin *out) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    Header h;
    struct stat st;
    char *text = NULL, *at = NULL;
    bool ok = fstat(fd, &st) == 0 && read_all(fd, &h, sizeof h) && h.magic == MAGIC && h.key_bytes == n && h.image_bytes > 0 &&
              (uint64_t)st.st_size >= sizeof h + n && h.image_bytes == (uint64_t)st.st_size - sizeof h - n;
    if (ok) ok = (text = malloc(n)) && (at = malloc(h.image_bytes)) && read_all(fd, text, n) && read_all(fd, at, h.image_bytes);
    close(fd);
    const CcCubin image = {at, ok ? h.image_bytes : 0};
    ok = ok && memcmp(text, key, n) == 0 && sum_of(key, n, &image) == h.sum;
    free(text);
    if (ok) *out = image;
    else free(at);
    return ok;
}

static void write_file(const char *path, const char *key, size_t n, const CcCubin *image) {
    static atomic_uint serial;
    char beside[PATH_BYTES + 64];
    snprintf(beside, sizeof beside, "%s.%ld.%u", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const Header h = {MAGIC, n, image->n, sum_of(key, n, image)};
    bool ok = write_all(fd, &h, sizeof h) && write_all(fd, key, n) && write_all(fd, image->at, image->n);
    ok = close(fd) == 0 && ok;
    if (!ok || rename(beside, path) < 0) (void)unlink(beside);
}

int cc_cubin_get(const char *source, int arch, CcCubin *out, CcErr *err) {
    CcSbuf key = {0};
    char path[PATH_BYTES];
    const uint64_t start = cc_log_now_ns();
    if (cc_nvrtc_options(arch, &key, err) < 0) return -1;
    char *options = strdup(cc_sbuf_text(&key));
    cc_sbuf_add(&key, "// %s\n%s", cc_nvrtc_describe(), source);
    const bool keeps = find_folder(path);
    if (keeps) {
        make_folders(path);
        const size_t used = strlen(path);
        snprintf(path + used, sizeof path - used, "/%016llx%016llx", (unsigned long long)cc_map_hash(key.text, key.n, 1),
                 (unsigned long long)cc_map_hash(key.text, key.n, 2));
    }
    const bool found = keeps && read_file(path, key.text, key.n, out);
    int status = found ? 0 : options ? cc_nvrtc_compile(source, options, out, err) : cc_err_set(err, CC_E_MEMORY, "no memory for a program");
    if (status == 0) {
        if (keeps && !found) write_file(path, key.text, key.n, out);
        cc_log_add(CC_LOG_KERNEL, "CUDA program of %zu bytes for sm_%d: %zu bytes %s, %.2f ms", strlen(source), arch, out->n,
                   found ? "from disk" : "compiled", (double)(cc_log_now_ns() - start) * 1e-6);
    }
    free(options);
    cc_sbuf_free(&key);
    return status;
}
