/* The timeline: a trace in Chrome's JSON format, which Perfetto and chrome://tracing show. The file is complete JSON
 * after each event, whenever the process ends: one write puts the event, and the closing brackets again, over the
 * brackets. A forked child, which shares the descriptor, leaves its parent's file alone. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

static const char HEAD[] = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", TAIL[] = "\n]}\n";
enum { MOST_BYTES = 1 << 30 };

static struct {
    pthread_mutex_t lock;
    int fd;       /* -1: closed */
    pid_t owner;  /* of the file */
    char *folder; /* NULL: a single file */
    size_t end;   /* where TAIL begins */
    bool first;   /* no event has been written */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static void put_text(CcSbuf *out, const char *s) {
    while (*s) {
        int plain = 0;
        while ((unsigned char)s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\') plain++;
        cc_sbuf_add(out, "%.*s", plain, s);
        s += plain;
        if (*s == '"' || *s == '\\') cc_sbuf_add(out, "\\%c", *s);
        else if (*s) cc_sbuf_add(out, "\\u%04x", (unsigned)*s);
        s += *s != '\0';
    }
}

/* Writes an event that `begin` began, and the tail. Frees the text. */
static void append(CcSbuf *event) {
    cc_sbuf_add(event, "%s", TAIL);
    if (pwrite(state.fd, event->text, event->n, (off_t)state.end) == (ssize_t)event->n) {
        state.end += event->n - (sizeof TAIL - 1);
        state.first = false;
    } else { /* the disk is full: what has been written stays valid */
        const ssize_t n = pwrite(state.fd, TAIL, sizeof TAIL - 1, (off_t)state.end);
        const int cut = ftruncate(state.fd, (off_t)(state.end + sizeof TAIL - 1));
        (void)n, (void)cut;
        cc_span_on &= ~(unsigned)CC_SPANS_TIMELINE;
    }
    cc_sbuf_free(event);
}

static void put_number(CcSbuf *out, const char *name, uint64_t ns) {
    cc_sbuf_add(out, ", \"%s\": %llu.%03llu", name, (unsigned long long)(ns / 1000), (unsigned long long)(ns % 1000));
}

/* {"ph": ..., "pid": ..., "tid": ..., "ts": ..., "cat": ..., "name": ... */
static CcSbuf begin(const char *phase, const char *category, const char *name, uint64_t ns) {
    CcSbuf out = {0};
    cc_sbuf_add(&out, "%s{\"ph\": \"%s\", \"pid\": %d, \"tid\": %ld", state.first ? "" : ",\n", phase, (int)state.owner,
                syscall(SYS_gettid));
    put_number(&out, "ts", ns);
    cc_sbuf_add(&out, ", \"cat\": \"%s\", \"name\": \"", category);
    put_text(&out, name);
    cc_sbuf_add(&out, "\"");
    return out;
}

static int open_file(const char *path, CcErr *err) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return cc_err_set(err, CC_E_HOST, "%s: %s", path, strerror(errno));
    state.fd = fd;
    state.owner = getpid();
    state.end = sizeof HEAD - 1;
    state.first = true;
    if (pwrite(fd, HEAD, sizeof HEAD - 1, 0) < 0) return cc_err_set(err, CC_E_HOST, "%s: %s", path, strerror(errno));
    CcSbuf event = begin("M", "__metadata", "process_name", 0);
    cc_sbuf_add(&event, ", \"args\": {\"name\": \"ccompile %d\"}}", (int)state.owner);
    append(&event);
    return 0;
}

static int open_in_folder(CcErr *err) {
    CcSbuf path = {0};
    cc_sbuf_add(&path, "%s/ccompile-%d.json", state.folder, (int)getpid());
    const int status = open_file(cc_sbuf_text(&path), err);
    cc_sbuf_free(&path);
    return status;
}

/* Whether events can be written: a forked child opens a file of its own in the folder, or none. */
static bool ready(void) {
    if (state.fd < 0 || state.end > MOST_BYTES) return false;
    if (state.owner == getpid()) return true;
    close(state.fd);
    state.fd = -1;
    CcErr ignored = {0};
    if (state.folder && open_in_folder(&ignored) == 0) return true;
    cc_span_on &= ~(unsigned)CC_SPANS_TIMELINE;
    return false;
}

void cc_timeline_span(const char *category, const char *name, uint64_t start_ns, uint64_t end_ns) {
    pthread_mutex_lock(&state.lock);
    if (ready()) {
        CcSbuf out = begin("X", category, name, start_ns);
        put_number(&out, "dur", end_ns - start_ns);
        cc_sbuf_add(&out, "}");
        append(&out);
    }
    pthread_mutex_unlock(&state.lock);
}

/* Kernels are compiled side by side, so that their times overlap: a pair of asynchronous events. */
static void write_pair(const CcLogEvent *e, const char *text) {
    for (int end = 0; end < 2; end++) {
        CcSbuf out = begin(end ? "e" : "b", cc_log_name(e->kind), cc_log_name(e->kind), end ? e->time_ns : e->start_ns);
        cc_sbuf_add(&out, ", \"id\": %llu, \"args\": {\"text\": \"", (unsigned long long)e->serial);
        put_text(&out, text);
        cc_sbuf_add(&out, "\"}}");
        append(&out);
    }
}

void cc_timeline_event(const CcLogEvent *e, const char *text) {
    pthread_mutex_lock(&state.lock);
    if (ready() && e->kind == CC_LOG_KERNEL) {
        write_pair(e, text);
    } else if (ready()) {
        CcSbuf out = begin("i", cc_log_topic(e->kind), cc_log_name(e->kind), e->time_ns);
        cc_sbuf_add(&out, ", \"s\": \"t\", \"args\": {\"text\": \"");
        put_text(&out, text);
        cc_sbuf_add(&out, "\", \"file\": \"");
        put_text(&out, e->file);
        cc_sbuf_add(&out, "\", \"line\": %d}}", e->line);
        append(&out);
    }
    pthread_mutex_unlock(&state.lock);
}

int cc_timeline_open(const char *path, CcErr *err) {
    struct stat info;
    pthread_mutex_lock(&state.lock);
    int status = -1;
    if (state.fd >= 0 && state.owner == getpid()) {
        cc_err_set(err, CC_E_UNSUPPORTED, "a timeline is being written already");
    } else {
        if (state.fd >= 0) close(state.fd);
        free(state.folder);
        state.folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? cc_mem_text(path) : NULL;
        status = state.folder ? open_in_folder(err) : open_file(path, err);
    }
    if (status == 0) cc_span_on |= CC_SPANS_TIMELINE;
    pthread_mutex_unlock(&state.lock);
    return status;
}

void cc_timeline_close(void) {
    pthread_mutex_lock(&state.lock);
    cc_span_on &= ~(unsigned)CC_SPANS_TIMELINE;
    if (state.fd >= 0) close(state.fd);
    state.fd = -1;
    pthread_mutex_unlock(&state.lock);
}
