/* Reads and writes on files and sockets that transfer everything or fail; a signal does not interrupt them. */
#include <errno.h>
#include <unistd.h>

#include "base.h"

bool cc_io_read(int fd, void *at, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(fd, (char *)at + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

bool cc_io_write(int fd, const void *at, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(fd, (const char *)at + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += (size_t)put;
    }
    return true;
}
