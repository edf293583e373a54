/* The least that a client can do: epoll, read, drop. One thread; each connection sends the same request again as soon as
   an answer has ended. What it reads is not kept, not timed and not understood.

   reader PORT CONNECTIONS REQUESTS [prompt] < request        prints: CPU seconds, reads, bytes, seconds

   prompt: with real-time priority, as the wire has while it needs little of a core. Ends with 7 where that is not allowed. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char request[1 << 16], data[1 << 16];

static double seconds(struct timeval t) { return t.tv_sec + t.tv_usec / 1e6; }

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int count, char **words) {
    struct sched_param first = {.sched_priority = 1};
    if (count < 4) return 2;
    if (count > 4 && sched_setscheduler(0, SCHED_RR, &first)) return 7;
    int connections = atoi(words[2]), left = atoi(words[3]), open = 0, on = 1;
    ssize_t size = 0, more;
    while ((more = read(0, request + size, sizeof request - size)) > 0) size += more;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int poller = epoll_create1(0);
    int *sockets = calloc(connections, sizeof *sockets);
    for (int i = 0; i < connections; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sockets[i], (struct sockaddr *)&address, sizeof address)) return 3;
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = sockets[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, sockets[i], &event);
    }
    double cpu_before = cpu(), before = now();
    long reads = 0, bytes = 0;
    for (int i = 0; i < connections && left > 0; i++, left--, open++)
        if (write(sockets[i], request, size) != size) return 4;
    while (open) {
        struct epoll_event events[1024];
        int ready = epoll_wait(poller, events, 1024, 5000);
        if (ready <= 0) return 5;
        for (int i = 0; i < ready; i++) {
            ssize_t got = read(events[i].data.fd, data, sizeof data);
            if (got <= 0) return 6;
            reads++, bytes += got;
            if (got < 5 || memcmp(data + got - 5, "0\r\n\r\n", 5)) continue;
            open--;
            if (left <= 0) continue;
            left--, open++;
            if (write(events[i].data.fd, request, size) != size) return 4;
        }
    }
    printf("%f %ld %ld %f\n", cpu() - cpu_before, reads, bytes, now() - before);
    return 0;
}
