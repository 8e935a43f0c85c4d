/* worker: has kernels compiled by a process of its own (compiler.c), which is started at the first kernel that is not
 * on disk.
 *
 *     this process ---- socket ---- compiler, with LLVM          no child of ours: who we start forks it and ends, and is reaped
 *                                                                here, so os.wait() and SIGCHLD handlers see nothing of it
 *
 * It ends when the socket closes, or when nothing was asked for some seconds; then the next kernel starts another. It
 * is in a session of its own, so no key of the terminal reaches it. One thread at a time (jit.c has a lock). */
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

static struct {
    char *program;
    bool open, greeted;
    int fd;
    pid_t owner; /* who opened it: after fork() the other process is somebody else's */
    /* the socket; a program may have closed it, and opened something else under its number */
    dev_t dev;
    ino_t ino;
    CcMap fatal; /* hashes of texts that it died of: not tried again */
} worker;

void cc_worker_program(const char *path) {
    const char *own = getenv("CCOMPILE_WORKER"); /* another program; "0": none */
    if (own) path = strcmp(own, "0") == 0 ? NULL : own;
    free(worker.program);
    worker.program = path ? strdup(path) : NULL;
}

static bool is_ours(void) {
    struct stat st;
    return fstat(worker.fd, &st) == 0 && st.st_dev == worker.dev && st.st_ino == worker.ino;
}

static void leave(void) {
    if (worker.open && is_ours()) close(worker.fd);
    worker.open = false;
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
    if (status) return cc_err_set(err, CC_E_MISSING, "the compiler's process can't be started: %s", strerror(status));
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    } /* it has forked; a handler of the program may have been faster */
    return 0;
}

static int start(const char *library, CcErr *err) {
    int end[2];
    struct stat st;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end) < 0)
        return cc_err_set(err, CC_E_MISSING, "the compiler's process can't be started: %s", strerror(errno));
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

static bool receive_answer(CcWorkerAnswer *answer) {
    return cc_io_read(worker.fd, answer, sizeof *answer) && answer->magic == CC_WORKER_MAGIC &&
           answer->bytes <= MAX_BYTES;
}

/* One question and its answer; false: the process is dead, or something else. */
static bool ask(const char *ir, const char *name, CcWorkerAnswer *answer, char **bytes) {
    CcWorkerAsk ask = {.magic = CC_WORKER_MAGIC, .bytes = strlen(ir)};
    snprintf(ask.name, sizeof ask.name, "%s", name);
    bool ok = send_all(&ask, sizeof ask) && send_all(ir, ask.bytes);
    /* at its start it says that it is what we think, even if it then dies */
    if (!worker.greeted) worker.greeted = receive_answer(answer);
    ok = ok && worker.greeted && receive_answer(answer) && (*bytes = malloc(answer->bytes + 1)) != NULL;
    if (ok && cc_io_read(worker.fd, *bytes, answer->bytes)) {
        (*bytes)[answer->bytes] = 0;
        return true;
    }
    free(*bytes);
    *bytes = NULL;
    return false;
}

CcWorkerEnd cc_worker_compile(const char *library, const char *ir, const char *name, CcBlob *object, CcErr *err) {
    if (!library || !worker.program) return CC_WORKER_ABSENT;
    CcWorkerAnswer answer;
    char *bytes = NULL;
    const void *text = (const void *)(uintptr_t)(cc_map_hash(ir, strlen(ir), 1) | 1);
    if (cc_map_find(&worker.fatal, text)) {
        cc_err_set(err, CC_E_BACKEND, "LLVM's process died twice of %s", name);
        return CC_WORKER_REFUSED;
    }
    if (worker.open && (worker.owner != getpid() || !is_ours())) leave();
    for (int fresh = 0;
         fresh < 2;) { /* one that had to wait may have ended meanwhile; one that had not has died of this text */
        fresh += !worker.open;
        if (!worker.open && start(library, err) < 0) return CC_WORKER_ABSENT;
        if (ask(ir, name, &answer, &bytes)) {
            if (!answer.failed) *object = (CcBlob){bytes, answer.bytes};
            if (!answer.failed) return CC_WORKER_DONE;
            cc_err_set(err, CC_E_BACKEND, "%s", bytes);
            free(bytes);
            return CC_WORKER_REFUSED;
        }
        const bool greeted = worker.greeted;
        leave();
        if (!greeted) {
            cc_err_set(err, CC_E_MISSING, "the compiler's process does not answer: %s", worker.program);
            return CC_WORKER_ABSENT;
        }
    }
    cc_map_put(&worker.fatal, text, 1);
    cc_err_set(err, CC_E_BACKEND, "LLVM's process died twice of %s", name);
    return CC_WORKER_REFUSED;
}
