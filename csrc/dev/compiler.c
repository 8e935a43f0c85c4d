/* compiler: the program that has LLVM, a process of its own beside those that use ccompile (worker.c starts it). Reads
 * texts from the socket that is its standard input, and writes objects or messages. Ends when the other end closes, or
 * after IDLE_MS without a question. setup.py makes an executable of it, with base/, dl.c, cpu.c and llvm.c.
 *
 * Arguments: path of libllvmlite.so, the CPU it is narrowed to or "". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dev_int.h"

/* Long enough for the compilations of one program's start, which follow one another: loading LLVM takes 20 ms (Zen
 * 4). */
enum { IDLE_MS = 5000, MAX_TEXT = 1 << 28 };

static bool answer(const void *at, size_t n, bool failed) {
    const CcWorkerAnswer head = {.magic = CC_WORKER_MAGIC, .bytes = n, .failed = failed};
    return cc_io_write(0, &head, sizeof head) && cc_io_write(0, at, n);
}

static bool compile(const char *library, const CcWorkerAsk *ask, const char *text) {
    CcErr err = {0};
    CcBlob object = {0};
    if (cc_llvm_ready(library, &err) < 0) return answer(err.text, strlen(err.text), true);
    if (!ask->bytes) return answer(cc_llvm_describe(), strlen(cc_llvm_describe()), false);
    const void *address = cc_llvm_compile(text, ask->name, &object, &err);
    if (address && !object.at) cc_err_set(&err, CC_E_BACKEND, "LLVM gave no object for %s", ask->name);
    const bool ok =
        address && object.at ? answer(object.at, object.n, false) : answer(err.text, strlen(err.text), true);
    free(object.at);
    return ok;
}

static bool serve(const char *library) {
    CcWorkerAsk ask;
    struct pollfd in = {.fd = 0, .events = POLLIN};
    const int ready = poll(&in, 1, IDLE_MS);
    if (ready < 0) return errno == EINTR;
    if (ready == 0 || !cc_io_read(0, &ask, sizeof ask) || ask.magic != CC_WORKER_MAGIC || ask.bytes > MAX_TEXT)
        return false;
    ask.name[sizeof ask.name - 1] = 0;
    char *text = malloc(ask.bytes + 1);
    bool ok = text && cc_io_read(0, text, ask.bytes);
    if (ok) text[ask.bytes] = 0;
    ok = ok && compile(library, &ask, text);
    free(text);
    return ok;
}

/* Nothing of who started it: files that it had open stay open as long as we have them. */
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
    if (fork() != 0) _exit(0); /* who started us waits for us */
    detach();
    if (chdir("/") < 0) return 1;
    if (*argv[2]) setenv("CCOMPILE_CPU", argv[2], 1);
    else unsetenv("CCOMPILE_CPU");
    if (!answer("", 0, false)) return 0;
    while (serve(argv[1])) {}
    _exit(0);
}
