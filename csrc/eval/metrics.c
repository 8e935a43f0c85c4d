/* Metrics of a root since they were last reset: counters, which are kept anyway, and the latency of its calls, which is
 * measured while metrics are switched on. */
#include "eval_int.h"

static CcTally tally_now(const CcRoot *root) {
    return (CcTally){.calls = root->calls,
                     .hits = root->hits,
                     .eager_calls = root->eager_calls,
                     .recordings = root->recordings,
                     .recompiles = root->recompiles,
                     .breaks = root->breaks,
                     .give_ups = root->give_ups_seen,
                     .recording_ns = root->recording_ns,
                     .compile_ns = root->compile_ns};
}

void cc_metrics_call(CcRoot *root, uint64_t ns, bool raised) {
    if (root->latency == NULL) root->latency = calloc(1, sizeof *root->latency);
    if (root->latency != NULL) cc_histogram_add(root->latency, ns);
    root->errors += raised;
}

void cc_metrics_reset(CcRoot *root) {
    root->before = tally_now(root);
    root->errors = 0;
    free(root->latency);
    root->latency = NULL;
}

/* What a call needs at most for values between its steps. */
static int64_t memory_of(const CcRoot *root) {
    int64_t most = 0;
    for (int e = 0; e < root->entry.n; e++) most = CC_MAX(most, cc_segment_memory(root->entry.at[e]->segment));
    for (int p = 0; p < root->point.n; p++)
        for (int k = 0; k < root->point.at[p]->segment.n; k++)
            most = CC_MAX(most, cc_segment_memory(root->point.at[p]->segment.at[k]));
    return most;
}

/* [(upper bound in ns, calls), ...]: the buckets that are not empty, in order */
static PyObject *bucket_list(const CcHistogram *h) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && h != NULL && i < CC_HISTOGRAM_BUCKETS; i++) {
        if (h->bucket[i] == 0) continue;
        PyObject *row =
            Py_BuildValue("(KK)", (unsigned long long)cc_histogram_above(i), (unsigned long long)h->bucket[i]);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *cc_metrics_dict(const CcRoot *root) {
    const CcTally now = tally_now(root), *then = &root->before;
    const CcHistogram *h = root->latency;
    return Py_BuildValue(
        "{s:O,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:i,s:d,s:d,s:L,s:K,s:K,s:N}", "name", root->name, "calls",
        (unsigned long long)(now.calls - then->calls), "hits", (unsigned long long)(now.hits - then->hits),
        "eager_calls", (unsigned long long)(now.eager_calls - then->eager_calls), "errors",
        (unsigned long long)root->errors, "recordings", (unsigned long long)(now.recordings - then->recordings),
        "recompiles", (unsigned long long)(now.recompiles - then->recompiles), "breaks",
        (unsigned long long)(now.breaks - then->breaks), "give_ups",
        (unsigned long long)(now.give_ups - then->give_ups), "entries", root->entry.n, "recording_ms",
        (double)(now.recording_ns - then->recording_ns) * 1e-6, "compile_ms",
        (double)(now.compile_ns - then->compile_ns) * 1e-6, "memory_bytes", (long long)memory_of(root), "sum_ns",
        (unsigned long long)(h != NULL ? h->sum_ns : 0), "max_ns", (unsigned long long)(h != NULL ? h->max_ns : 0),
        "buckets", bucket_list(h));
}
