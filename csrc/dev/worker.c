/* worker: sends kernels to a compiler process (compiler.c), which starts with the first kernel that is not on disk.
 *
 *     this process ---- socket ---- compiler, with LLVM          not a child of ours: the spawned process forks it and exits
 *                                                                at once, and is reaped here, so the program's os.wait()
 *                                                                and SIGCHLD handlers never see it
 *
 * It ends when the socket closes, or when nothing was asked for some seconds; then the next kernel starts another. It
 * is in a session of its own, so no key of the terminal reaches it. One thread at a time (jit.c has a lock).
 *
 * Several requests may be pending: the compiler's threads share them, and replies come in any order. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev_int.h"

extern char **environ;

enum { PATIENCE_S = 60, MAX_BYTES = 1 << 28 };

typedef struct Reply {
    uint64_t serial;
    bool failed;
    CcBlob bytes; /* NUL-terminated */
} Reply;

static struct {
    char *program;
    bool open, greeted;
    int fd;
    uint64_t serial;         /* of the last request */
    uint64_t first;          /* the first serial of the running process; earlier ones are lost */
    int n_asked, n_answered; /* by the running process */
    CC_VEC(Reply) early;     /* received while waiting for another one */
    pid_t owner;             /* who opened it: after fork() the other process is somebody else's */
    /* the socket; a program may have closed it, and opened something else under its number */
    dev_t dev;
    ino_t ino;
    CcMap fatal; /* hashes of IR on which the compiler crashed; never retried */
} worker;

void cc_worker_program(const char *path) {
    const char *own = getenv("CCOMPILE_WORKER"); /* another program; "0": none */
    if (own) path = strcmp(own, "0") == 0 ? NULL : own;
    free(worker.program);
    worker.program = path ? cc_mem_text(path) : NULL;
}

static bool is_ours(void) {
    struct stat st;
    return fstat(worker.fd, &st) == 0 && st.st_dev == worker.dev && st.st_ino == worker.ino;
}

static void leave(void) {
    if (worker.open && is_ours()) close(worker.fd);
    worker.open = false;
    worker.first = worker.serial + 1;
    worker.n_asked = worker.n_answered = 0;
    for (int i = 0; i < worker.early.n; i++) free(worker.early.at[i].bytes.at);
    worker.early.n = 0;
}

static int spawn(const char *library, int fd, CcErr *err) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawn_file_actions_adddup2(&files, fd, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", 1, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", 1, 0);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    const CcCpu *cpu = cc_cpu_info();
    char *const argv[] = {worker.program, (char *)library, (char *)(cpu->narrowed ? cpu->name : ""), NULL};
    pid_t pid;
    const int status = posix_spawn(&pid, worker.program, &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (status) return cc_err_set(err, CC_E_MISSING, "the compiler process can't be started: %s", strerror(status));
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    } /* it has forked and exited; the program's own handler may have reaped it */
    return 0;
}

static int start(const char *library, CcErr *err) {
    int end[2];
    struct stat st;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end) < 0)
        return cc_err_set(err, CC_E_MISSING, "the compiler process can't be started: %s", strerror(errno));
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    setsockopt(end[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(end[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const int status = fstat(end[0], &st) < 0 ? -1 : spawn(library, end[1], err);
    close(end[1]);
    worker.fd = end[0];
    worker.dev = st.st_dev;
    worker.ino = st.st_ino;
    worker.owner = getpid();
    worker.greeted = false;
    worker.open = true;
    if (status < 0) leave();
    return status;
}

static bool send_all(const void *at, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t put = send(worker.fd, (const char *)at + done, n - done, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += (size_t)put;
    }
    return true;
}

static bool receive(Reply *out) {
    CcWorkerReply head;
    if (!cc_io_read(worker.fd, &head, sizeof head) || head.magic != CC_WORKER_MAGIC || head.bytes > MAX_BYTES)
        return false;
    char *bytes = malloc(head.bytes + 1);
    if (!bytes || !cc_io_read(worker.fd, bytes, head.bytes)) {
        free(bytes);
        return false;
    }
    bytes[head.bytes] = 0;
    *out = (Reply){head.serial, head.failed != 0, {bytes, head.bytes}};
    return true;
}

/* The process greets when it starts, so a crash while it compiles is told from a program that is not the compiler. */
static bool receive_greeting(void) {
    Reply hello;
    if (!worker.greeted && receive(&hello)) {
        worker.greeted = hello.serial == 0;
        free(hello.bytes.at);
    }
    return worker.greeted;
}

/* false: the process has died or is not the compiler, or the request went to an earlier process. */
static bool wait_for(uint64_t serial, Reply *out) {
    for (int i = 0; i < worker.early.n; i++) {
        if (worker.early.at[i].serial != serial) continue;
        *out = worker.early.at[i];
        worker.early.at[i] = worker.early.at[--worker.early.n];
        return true;
    }
    while (worker.open && serial >= worker.first && receive_greeting() && receive(out)) {
        worker.n_answered++;
        if (out->serial == serial) return true;
        cc_vec_push(&worker.early, *out);
    }
    return false;
}

static const void *fatal_key(const char *ir) { return (const void *)(uintptr_t)(cc_map_hash(ir, strlen(ir), 1) | 1); }

static uint64_t send_request(const char *library, const char *ir, CcErr *err) {
    if (worker.open && (worker.owner != getpid() || !is_ours())) leave();
    if (!worker.open && start(library, err) < 0) return 0;
    const CcWorkerRequest head = {.magic = CC_WORKER_MAGIC, .bytes = strlen(ir), .serial = ++worker.serial};
    worker.n_asked++;
    /* A failed send shows when the reply is read. */
    if (send_all(&head, sizeof head)) (void)send_all(ir, head.bytes);
    return worker.serial;
}

uint64_t cc_worker_send(const char *library, const char *ir) {
    CcErr ignored;
    if (!library || !worker.program || cc_map_find(&worker.fatal, fatal_key(ir))) return 0;
    return send_request(library, ir, &ignored);
}

CcWorkerOutcome cc_worker_compile(const char *library, const char *ir, const char *name, uint64_t serial,
                                  CcBlob *object, CcErr *err) {
    if (!library || !worker.program) return CC_WORKER_ABSENT;
    if (worker.open && (worker.owner != getpid() || !is_ours())) leave();
    for (int deaths = cc_map_find(&worker.fatal, fatal_key(ir)) ? 2 : 0; deaths < 2; serial = 0) {
        Reply answer;
        if (!serial && !(serial = send_request(library, ir, err))) return CC_WORKER_ABSENT;
        if (wait_for(serial, &answer)) {
            if (!answer.failed) *object = answer.bytes;
            if (!answer.failed) return CC_WORKER_DONE;
            cc_err_set(err, CC_E_BACKEND, "%s", answer.bytes.at);
            free(answer.bytes.at);
            return CC_WORKER_REFUSED;
        }
        if (serial < worker.first) continue; /* sent to a process that is gone */
        /* This IR is to blame only if it was the process's only request: with others pending any of them may be, and a
         * process that has replied may have exited because it was idle. */
        deaths += worker.n_asked == 1 && worker.n_answered == 0;
        const bool greeted = worker.greeted;
        leave();
        if (!greeted) {
            cc_err_set(err, CC_E_MISSING, "the compiler process does not reply: %s", worker.program);
            return CC_WORKER_ABSENT;
        }
    }
    cc_map_put(&worker.fatal, fatal_key(ir), 1);
    cc_err_set(err, CC_E_BACKEND, "the compiler process died twice compiling %s", name);
    return CC_WORKER_REFUSED;
}
