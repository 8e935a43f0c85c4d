/* compiler: the worker program that runs LLVM in a process of its own (worker.c starts it). Reads LLVM IR from the
 * socket on its standard input and writes back objects or error messages. Exits when the client closes the socket, or
 * after IDLE_MS without a request. One thread reads requests into a queue, so a client never blocks while it sends; up to
 * MAX_THREADS threads, at most one per processor, compile them. setup.py links it from base/, dl.c, cpu.c and llvm.c.
 *
 * Arguments: path of libllvmlite.so; the CPU level of CCOMPILE_CPU, or "". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dev_int.h"

/* IDLE_MS spans the pauses between a program's first compilations; loading LLVM again takes 20 ms (Zen 4). */
enum { IDLE_MS = 5000, MAX_TEXT = 1 << 28, MAX_THREADS = 8 };

typedef struct Job {
    uint64_t serial;
    char *text;
    struct Job *next;
} Job;

static struct {
    const char *library;
    pthread_mutex_t lock, writing;
    pthread_cond_t more;
    Job *first, *last;
    int n_left; /* jobs without a reply */
    int n_threads;
    int max_threads;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .writing = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static bool send_reply(uint64_t serial, const void *at, size_t n, bool failed) {
    const CcWorkerReply head = {.magic = CC_WORKER_MAGIC, .bytes = n, .serial = serial, .failed = failed};
    pthread_mutex_lock(&server.writing);
    const bool ok = cc_io_write(0, &head, sizeof head) && cc_io_write(0, at, n);
    pthread_mutex_unlock(&server.writing);
    return ok;
}

static bool compile(CcLlvm **llvm, const Job *job) {
    CcErr err = {0};
    CcBlob object = {0};
    if (!*llvm && !(*llvm = cc_llvm_new(server.library, &err)))
        return send_reply(job->serial, err.text, strlen(err.text), true);
    if (!*job->text) return send_reply(job->serial, cc_llvm_describe(), strlen(cc_llvm_describe()), false);
    const bool made = cc_llvm_compile(*llvm, job->text, &object, &err) == 0;
    const bool ok = made ? send_reply(job->serial, object.at, object.n, false)
                         : send_reply(job->serial, err.text, strlen(err.text), true);
    free(object.at);
    return ok;
}

static Job *take_job(void) {
    pthread_mutex_lock(&server.lock);
    while (!server.first) pthread_cond_wait(&server.more, &server.lock);
    Job *job = server.first;
    server.first = job->next;
    pthread_mutex_unlock(&server.lock);
    return job;
}

static void *work(void *unused) {
    (void)unused;
    for (CcLlvm *llvm = NULL;;) {
        Job *job = take_job();
        if (!compile(&llvm, job)) _exit(0);
        free(job->text);
        free(job);
        pthread_mutex_lock(&server.lock);
        server.n_left--;
        pthread_mutex_unlock(&server.lock);
    }
    return NULL;
}

/* Starts another thread if all are busy. false: no thread runs. */
static bool queue_job(Job *job) {
    pthread_t thread;
    pthread_mutex_lock(&server.lock);
    if (server.first) server.last->next = job;
    else server.first = job;
    server.last = job;
    if (++server.n_left > server.n_threads && server.n_threads < server.max_threads)
        server.n_threads += pthread_create(&thread, NULL, work, NULL) == 0;
    const bool ok = server.n_threads > 0;
    pthread_cond_signal(&server.more);
    pthread_mutex_unlock(&server.lock);
    return ok;
}

static bool is_busy(void) {
    pthread_mutex_lock(&server.lock);
    const bool busy = server.n_left > 0;
    pthread_mutex_unlock(&server.lock);
    return busy;
}

static bool serve(void) {
    CcWorkerRequest request;
    struct pollfd in = {.fd = 0, .events = POLLIN};
    const int ready = poll(&in, 1, IDLE_MS);
    if (ready < 0) return errno == EINTR;
    if (ready == 0) return is_busy();
    if (!cc_io_read(0, &request, sizeof request) || request.magic != CC_WORKER_MAGIC || request.bytes > MAX_TEXT)
        return false;
    Job *job = calloc(1, sizeof *job);
    if (!job || !(job->text = malloc(request.bytes + 1)) || !cc_io_read(0, job->text, request.bytes)) return false;
    job->text[request.bytes] = 0;
    job->serial = request.serial;
    return queue_job(job);
}

static int count_processors(void) {
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < MAX_THREADS ? n : MAX_THREADS;
}

/* Closes inherited descriptors, which would keep the starting process's files open, and disables core dumps. */
static void detach(void) {
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
#endif
    for (int fd = 3; fd < 1024; fd++) close(fd);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        static const char usage[] = "ccompile's compiler: started by ccompile itself\n";
        return write(2, usage, sizeof usage - 1) < 0 ? 1 : 2;
    }
    if (fork() != 0) _exit(0); /* the starting process reaps this one at once */
    detach();
    if (chdir("/") < 0) return 1;
    if (*argv[2]) setenv("CCOMPILE_CPU", argv[2], 1);
    else unsetenv("CCOMPILE_CPU");
    server.library = argv[1];
    cc_llvm_alone();
    server.max_threads = count_processors();
    if (!send_reply(0, "", 0, false)) return 0;
    while (serve()) {}
    _exit(0);
}
