/* cubin: compiled CUDA programs, cached on disk. The key is NVRTC's version, the options and the source. */
#include "dev.h"

int cc_cubin_get(const char *source, int arch, CcCubin *out, CcErr *err) {
    CcSbuf key = {0};
    const uint64_t start = cc_log_now_ns();
    if (cc_nvrtc_options(arch, &key, err) < 0) return -1;
    char *options = cc_mem_text(cc_sbuf_text(&key));
    cc_sbuf_add(&key, "// %s\n%s", cc_nvrtc_describe(), source);
    const bool found = cc_disk_get(CC_DISK_CUBIN, key.text, key.n, out);
    int status = found ? 0 : cc_nvrtc_compile(source, options, out, err);
    if (status == 0) {
        if (!found) cc_disk_put(CC_DISK_CUBIN, key.text, key.n, out);
        cc_log_more(CC_LOG_KERNEL, (CcLogExtra){.start_ns = start},
                    "CUDA program of %zu bytes for sm_%d: %zu bytes %s, %.2f ms", strlen(source), arch, out->n,
                    found ? "from disk" : "compiled", (double)(cc_log_now_ns() - start) * 1e-6);
    }
    free(options);
    cc_sbuf_free(&key);
    return status;
}
