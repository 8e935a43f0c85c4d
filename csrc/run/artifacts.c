/* artifacts: files of the kernel cache as bytes, for programs that move them to another machine. A file's key names the
 * CPU and the compiler, so one from a machine of another kind is never found. */
#include "run_int.h"

bool cc_artifacts_used(int i, CcRunFile *out) {
    CcBlob key, image;
    if (!cc_disk_used(i, &out->kind, &key, &image)) return false;
    out->key = key.at;
    out->n_key = key.n;
    out->image = image.at;
    out->n_image = image.n;
    return true;
}

bool cc_artifacts_add(const CcRunFile *file) {
    return cc_disk_add(file->kind, file->key, file->n_key, &(CcBlob){file->image, file->n_image});
}

void cc_artifacts_free(CcRunFile *file) {
    free(file->key);
    free(file->image);
}

char *cc_artifacts_machine(void) {
    CcSbuf text = {0};
    cc_cpu_describe(&text);
    char *copy = cc_mem_text(cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    return copy;
}
