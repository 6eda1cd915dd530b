# The classic ways out of a chroot must end at the sandbox's own root.
open("/marker-of-this-sandbox", "w").close()
root = os.stat("/")


def same(what):
    now = os.stat("/")
    check(what, (now.st_dev, now.st_ino) == (root.st_dev, root.st_ino) and os.path.exists("/marker-of-this-sandbox"),
          str(os.listdir("/")))


def in_child(action):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            same("child")
            code = 1 if _tally["wrong"] else 0
        finally:
            os._exit(code)
    check(action.__name__, os.waitpid(pid, 0)[1] == 0)


def double_chroot():
    os.makedirs("/tmp/jail/inner", exist_ok=True)
    os.chroot("/tmp/jail")
    os.mkdir("/again") if not os.path.exists("/again") else None
    os.chroot("/again")
    for _ in range(256):
        os.chdir("..")
    os.chroot(".")


def held_descriptor():
    held = os.open("/", os.O_RDONLY)
    os.makedirs("/tmp/jail", exist_ok=True)
    os.chroot("/tmp/jail")
    os.fchdir(held)
    for _ in range(256):
        os.chdir("..")
    os.chroot(".")


def through_proc():
    held = os.open("/proc/self/root", os.O_RDONLY)
    os.fchdir(held)
    for _ in range(256):
        os.chdir("..")
    os.chroot(".")


def moved_directory():
    # A process inside a directory that is moved out of the jail walks up past its root.
    os.makedirs("/tmp/jail2/deep", exist_ok=True)
    os.makedirs("/tmp/outside", exist_ok=True)
    held = os.open("/tmp", os.O_RDONLY)
    os.chdir("/tmp/jail2/deep")
    os.chroot("/tmp/jail2")
    os.rename("jail2/deep", "outside/deep", src_dir_fd=held, dst_dir_fd=held)
    for _ in range(256):
        os.chdir("..")
    os.chroot(".")


for action in (double_chroot, held_descriptor, through_proc, moved_directory):
    in_child(action)
finish()
