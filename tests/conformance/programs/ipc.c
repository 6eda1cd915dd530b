// Makes System V objects of one kind until the kernel refuses or kills.
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

enum { SEGMENT = 64 * 1024, OBJECTS = 40000, TEXT = 8000 };

static struct { long type; char text[TEXT]; } message = { 1, "" };

int main(int count, char **arguments) {
    if (count != 2) return 2;
    for (int made = 0; made < OBJECTS; made++) {
        if (strcmp(arguments[1], "memory") == 0) {
            int segment = shmget(IPC_PRIVATE, SEGMENT, IPC_CREAT | 0600);
            if (segment < 0) return 0;
            char *at = shmat(segment, 0, 0);
            if (at == (void *)-1) return 3;
            memset(at, 1, SEGMENT);
            shmdt(at);
        } else if (strcmp(arguments[1], "queues") == 0) {
            int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
            if (queue < 0) return 0;
            while (msgsnd(queue, &message, TEXT, IPC_NOWAIT) == 0) {}
        } else if (semget(IPC_PRIVATE, 30000, IPC_CREAT | 0600) < 0) {
            return 0;
        }
    }
    return 0;
}
