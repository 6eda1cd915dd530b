/* What programs do to files of a volume and no tool of busybox does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct subvolume {
  long long fd;
  char name[4088];
};

static int tell(const char *what, int failed) {
  if (failed) printf("%s: %s\n", what, strerror(errno));
  return failed ? 1 : 0;
}

static void ready(void) { close(open("/data/ready", O_CREAT | O_WRONLY, 0644)); }

int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "";
  if (!strcmp(what, "flock") || !strcmp(what, "fcntl")) {
    int file = open("/data/lock", O_CREAT | O_RDWR, 0644);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int failed = what[1] == 'l' ? flock(file, LOCK_EX | LOCK_NB) : fcntl(file, F_SETLK, &whole);
    if (failed) return tell(what, 1);
    if (count > 2) return 0; /* only asked whether it can be had */
    ready();
    pause();
  }
  if (!strcmp(what, "subvolume")) { /* would have a quota of its own: none */
    struct subvolume made = {.name = "sub"};
    int dir = open("/data", O_RDONLY | O_DIRECTORY);
    return tell("create", ioctl(dir, _IOW(0x94, 14, struct subvolume), &made));
  }
  if (!strcmp(what, "clone") || !strcmp(what, "range")) { /* share bytes between two files */
    int from = open(words[2], O_RDONLY), to = open(words[3], O_CREAT | O_RDWR, 0644);
    if (what[0] == 'r') return tell("range", copy_file_range(from, 0, to, 0, 1 << 20, 0) < 0);
    return tell("clone", ioctl(to, _IOW(0x94, 9, int), from));
  }
  if (!strcmp(what, "mmap")) { /* writes through a mapping, for others to see */
    int file = open("/data/mapped", O_CREAT | O_RDWR, 0644);
    if (ftruncate(file, 4096)) return tell("truncate", 1);
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) return tell("map", 1);
    strcpy(page, "through memory");
    close(file);
    ready();
    pause();
  }
  if (!strcmp(what, "watch")) {
    if (inotify_add_watch(inotify_init(), "/data", IN_CREATE) < 0) return tell("watch", 1);
    ready();
    pause();
  }
  if (!strcmp(what, "flight")) { /* a file that waits in a socket and is open nowhere else */
    int pair[2], file = open("/data/sent", O_CREAT | O_RDWR, 0644);
    char byte = 'x', room[CMSG_SPACE(sizeof file)];
    memset(room, 0, sizeof room);
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof file)};
    memcpy(CMSG_DATA(first), &file, sizeof file);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &message, 0) != 1) return tell("send", 1);
    close(file);
    ready();
    pause();
  }
  struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/data/socket"};
  int plug = socket(AF_UNIX, SOCK_STREAM, 0);
  if (!strcmp(what, "listen")) {
    if (bind(plug, (struct sockaddr *)&at, sizeof at) || listen(plug, 4)) return tell("bind", 1);
    ready();
    int caller = accept(plug, 0, 0);
    return tell("answer", write(caller, "hello\n", 6) != 6);
  }
  if (!strcmp(what, "connect")) {
    char said[16] = {0};
    if (connect(plug, (struct sockaddr *)&at, sizeof at)) return tell("connect", 1);
    if (read(plug, said, sizeof said - 1) < 0) return tell("read", 1);
    fputs(said, stdout);
    return 0;
  }
  return 2;
}
