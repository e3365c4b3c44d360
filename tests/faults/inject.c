/* Calls of the C library that fail, in Python and in what is written in C++: loaded by LD_PRELOAD.

inject(call, where, number, after, count): of the calls of that kind on paths that match the regular
expression, those after so many fail with an error number, so many times; -1 is for ever. Each call
that matches is written to the file at once, as "call path", and one that fails as "FAILED call path".
An empty kind means all. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static volatile int armed = 0;
static regex_t wanted;
static char kind[32];
static int number, after, count, record, seen;

int inject(const char *call, const char *where, int error, int skipped, int times, const char *file) {
  if (regcomp(&wanted, where, REG_EXTENDED | REG_NOSUB)) return -1;
  strncpy(kind, call, sizeof kind - 1);
  number = error, after = skipped, count = times, seen = 0;
  record = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  armed = 1;
  return record;
}

static void path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  path[size < 0 ? 0 : size] = 0;
}

static int fails(const char *call, int folder, const char *name) {
  if (!armed || (kind[0] && strcmp(call, kind))) return 0;
  char path[2 * PATH_MAX + 2] = "", line[3 * PATH_MAX];
  int kept = errno, failing = 0;
  if (!name || name[0] != '/') {
    if (folder == AT_FDCWD) {
      if (syscall(SYS_getcwd, path, PATH_MAX) < 0) path[0] = 0;
    } else {
      path_of(folder, path);
    }
    if (name) strcat(path, "/");
  }
  if (name) strncat(path, name, PATH_MAX);
  pthread_mutex_lock(&turn);
  if (!regexec(&wanted, path, 0, NULL, 0)) {
    failing = number && seen >= after && (count < 0 || seen < after + count);
    seen++;
    int size = snprintf(line, sizeof line, "%s%s %s\n", failing ? "FAILED " : "", call, path);
    syscall(SYS_write, record, line, size);
  }
  pthread_mutex_unlock(&turn);
  errno = failing ? number : kept;
  return failing;
}

#define AT(folder, name) folder, name
#define FD(fd) fd, NULL
#define HERE(name) AT_FDCWD, name
#define WRAP(call, type, failure, name, declared, given, where)              \
  type name declared {                                                      \
    static type (*next) declared;                                           \
    if (!next) next = dlsym(RTLD_NEXT, #name);                              \
    return fails(call, where) ? failure : next given;                       \
  }
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { __builtin_va_list all;    \
    __builtin_va_start(all, flags); mode = __builtin_va_arg(all, mode_t); __builtin_va_end(all); }
#define OPEN(name)                                                          \
  int name(const char *path, int flags, ...) {                              \
    static int (*next)(const char *, int, ...);                             \
    MODE if (!next) next = dlsym(RTLD_NEXT, #name);                         \
    return fails("open", HERE(path)) ? -1 : next(path, flags, mode);        \
  }
#define OPENAT(name)                                                        \
  int name(int folder, const char *path, int flags, ...) {                  \
    static int (*next)(int, const char *, int, ...);                        \
    MODE if (!next) next = dlsym(RTLD_NEXT, #name);                         \
    return fails("open", AT(folder, path)) ? -1 : next(folder, path, flags, mode); \
  }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
#define FOPEN(name) WRAP("open", FILE *, NULL, name, (const char *path, const char *mode), (path, mode), HERE(path))
FOPEN(fopen) FOPEN(fopen64)
WRAP("open", int, -1, __openat_2, (int folder, const char *path, int flags), (folder, path, flags), AT(folder, path))
WRAP("read", ssize_t, -1, read, (int fd, void *to, size_t size), (fd, to, size), FD(fd))
#define PREAD(name) WRAP("read", ssize_t, -1, name, (int fd, void *to, size_t size, off_t at), (fd, to, size, at), FD(fd))
PREAD(pread) PREAD(pread64)
WRAP("read", ssize_t, -1, readv, (int fd, const struct iovec *parts, int n), (fd, parts, n), FD(fd))
WRAP("write", ssize_t, -1, write, (int fd, const void *from, size_t size), (fd, from, size), FD(fd))
#define PWRITE(name) WRAP("write", ssize_t, -1, name, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at), FD(fd))
PWRITE(pwrite) PWRITE(pwrite64)
WRAP("write", ssize_t, -1, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), FD(fd))
WRAP("write", int, -1, ftruncate, (int fd, off_t size), (fd, size), FD(fd))
WRAP("write", int, -1, ftruncate64, (int fd, off_t size), (fd, size), FD(fd))
WRAP("fsync", int, -1, fsync, (int fd), (fd), FD(fd))
WRAP("fsync", int, -1, fdatasync, (int fd), (fd), FD(fd))
WRAP("rename", int, -1, rename, (const char *from, const char *to), (from, to), HERE(to))
WRAP("rename", int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), AT(b, to))
WRAP("rename", int, -1, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), AT(b, to))
WRAP("rename", int, -1, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), AT(b, to))
WRAP("mkdir", int, -1, mkdir, (const char *path, mode_t mode), (path, mode), HERE(path))
WRAP("mkdir", int, -1, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), AT(folder, path))
WRAP("list", DIR *, NULL, opendir, (const char *path), (path), HERE(path))
WRAP("list", DIR *, NULL, fdopendir, (int fd), (fd), FD(fd))
#define STAT(name, status) WRAP("stat", int, -1, name, (const char *path, struct status *to), (path, to), HERE(path))
STAT(stat, stat) STAT(stat64, stat64) STAT(lstat, stat) STAT(lstat64, stat64)
#define XSTAT(name, status) WRAP("stat", int, -1, name, (int version, const char *path, struct status *to), (version, path, to), HERE(path))
XSTAT(__xstat, stat) XSTAT(__xstat64, stat64) XSTAT(__lxstat, stat) XSTAT(__lxstat64, stat64)
WRAP("stat", int, -1, __fxstat, (int version, int fd, struct stat *to), (version, fd, to), FD(fd))
#define FSTAT(name, status) WRAP("stat", int, -1, name, (int fd, struct status *to), (fd, to), FD(fd))
FSTAT(fstat, stat) FSTAT(fstat64, stat64)
#define FSTATAT(name, status) WRAP("stat", int, -1, name, (int folder, const char *path, struct status *to, int flags), (folder, path, to, flags), AT(folder, path))
FSTATAT(fstatat, stat) FSTATAT(fstatat64, stat64)
WRAP("unlink", int, -1, unlink, (const char *path), (path), HERE(path))
WRAP("unlink", int, -1, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), AT(folder, path))
WRAP("unlink", int, -1, rmdir, (const char *path), (path), HERE(path))
