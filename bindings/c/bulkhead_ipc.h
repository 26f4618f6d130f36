/* Share GPU buffers by name between processes on one node.
 *
 * A producer publishes what cuIpcGetMemHandle gave it; a consumer waits for the name; each learns when the other is done
 * with it, or has died. Nothing to link: include this file. It talks to Bulkhead's proxy over the socket of the zone that
 * the program is in, and needs CUDA only for the handles themselves.
 *
 *     // producer                                       // consumer
 *     bulkhead_ipc_offer offer = {0};                   bulkhead_ipc_offer offer;
 *     cuIpcGetMemHandle((void *)offer.memory, ptr);     int fd = bulkhead_ipc_wait("weights", 5000, &offer);
 *     offer.bytes = size;                               if (fd < 0) ...                 // -ETIMEDOUT
 *     cuCtxSynchronize();                               CUipcMemHandle handle;
 *     int fd = bulkhead_ipc_publish("weights", &offer); memcpy(&handle, offer.memory, 64);
 *     bulkhead_ipc_wait_done(fd, 1, -1);                cuIpcOpenMemHandle(&ptr, handle, 1);
 *     bulkhead_ipc_done(fd);                            ... cuIpcCloseMemHandle(ptr); bulkhead_ipc_done(fd);
 *
 * A consumer sees publications of its own zone, and those of zones that grant it access; ZONE/NAME says which. Functions
 * answer with a negative errno when they fail. A descriptor may be polled; POLLIN means that bulkhead_ipc_next has
 * something to say. Closing it without bulkhead_ipc_done counts as having died.
 *
 * Licensed under Apache-2.0 or MIT, at your option.
 */
#ifndef BULKHEAD_IPC_H
#define BULKHEAD_IPC_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BULKHEAD_IPC_HANDLE 64
#define BULKHEAD_IPC_NOTE 712

/* What is published. Zero it before you fill it. */
typedef struct {
    unsigned char memory[BULKHEAD_IPC_HANDLE]; /* of cuIpcGetMemHandle; all zeros: no memory, just a name */
    unsigned char event[BULKHEAD_IPC_HANDLE];  /* of cuIpcGetEventHandle, or all zeros */
    uint64_t bytes;                            /* of the buffer */
    uint64_t offset;                           /* of the buffer in the memory that the handle opens */
    char zone[64];                             /* filled in by bulkhead_ipc_wait: whose it is */
    size_t note_len;
    unsigned char note[BULKHEAD_IPC_NOTE];     /* free for your own use, such as a shape */
} bulkhead_ipc_offer;

enum {
    BULKHEAD_IPC_TAKEN = 104,    /* to the producer: consumer `number` has connected */
    BULKHEAD_IPC_FINISHED = 105, /* to the producer: consumer `number` has finished */
    BULKHEAD_IPC_LOST = 106,     /* to the producer: consumer `number` has died */
    BULKHEAD_IPC_GONE = 103      /* to the consumer: the producer has withdrawn it (code 0), or has died */
};

typedef struct {
    uint32_t kind; /* one of the above */
    uint32_t code;
    uint64_t number; /* of the consumer, counted from 1 */
    char zone[64];   /* of the consumer */
} bulkhead_ipc_event;

/* ---- implementation ---- */

typedef struct {
    uint32_t kind, code;
    uint64_t number, bytes, offset, age, reserved;
    char name[64], zone[64];
    unsigned char memory[64], event[64];
    uint64_t note_len;
    unsigned char note[BULKHEAD_IPC_NOTE];
} bulkhead_ipc__message;

typedef char bulkhead_ipc__size_is_right[sizeof(bulkhead_ipc__message) == 1024 ? 1 : -1];

/* Milliseconds of the monotonic clock. */
static inline int64_t bulkhead_ipc__now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int bulkhead_ipc__connect_to(const char *path) {
    struct sockaddr_un address;
    /* A connection is opened by a message of its own: "BkMt", version 1, six reserved words. */
    uint64_t opening[7] = {0};
    uint32_t magic[2] = {0x744d6b42u, 1};
    int fd, failed;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path) return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    memcpy(opening, magic, sizeof magic);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        send(fd, opening, sizeof opening, MSG_NOSIGNAL) != (ssize_t)sizeof opening) {
        failed = errno;
        close(fd);
        return -failed;
    }
    return fd;
}

static inline int bulkhead_ipc__connect(void) {
    const char *path = getenv("BULKHEAD_SOCKET");
    int fd = bulkhead_ipc__connect_to(path ? path : "/run/bulkhead/zone/sock");
    /* In a Xen guest the zone's socket is in another domain, and this one leads to it. */
    return fd != -ENOENT || path ? fd : bulkhead_ipc__connect_to("/run/bulkhead/zone/names");
}

/* Puts NAME or ZONE/NAME into a message. */
static inline int bulkhead_ipc__name(bulkhead_ipc__message *message, const char *name) {
    const char *slash = strchr(name, '/');
    size_t zone = slash ? (size_t)(slash - name) : 0;
    if (slash) name = slash + 1;
    if (zone >= sizeof message->zone || strlen(name) >= sizeof message->name || !*name) return -EINVAL;
    if (slash) memcpy(message->zone, slash - zone, zone);
    strcpy(message->name, name);
    return 0;
}

static inline int bulkhead_ipc__say(int fd, const bulkhead_ipc__message *message) {
    ssize_t sent = send(fd, message, sizeof *message, MSG_NOSIGNAL);
    return sent == (ssize_t)sizeof *message ? 0 : sent < 0 ? -errno : -EPIPE;
}

/* 1: a message; 0: none until then (-1: for ever). */
static inline int bulkhead_ipc__hear(int fd, bulkhead_ipc__message *message, int64_t until) {
    struct pollfd polled;
    ssize_t got;
    int ready, left;
    do {
        left = -1;
        if (until >= 0) {
            int64_t time = until - bulkhead_ipc__now();
            left = time < 0 ? 0 : time > 1000000000 ? 1000000000 : (int)time;
        }
        polled.fd = fd;
        polled.events = POLLIN;
        polled.revents = 0;
        ready = poll(&polled, 1, left);
    } while (ready < 0 && errno == EINTR);
    if (ready < 0) return -errno;
    if (ready == 0) return 0;
    got = recv(fd, message, sizeof *message, 0);
    if (got < 0) return -errno;
    if (got == 0) return -EPIPE;
    if (got != (ssize_t)sizeof *message) return -EPROTO;
    message->name[63] = message->zone[63] = 0;
    return 1;
}

static inline int bulkhead_ipc__refusal(uint32_t code) {
    switch (code) {
    case 1: return -EINVAL; /* invalid name or message */
    case 2: return -EEXIST; /* the name is already published in this zone */
    case 3: return -ESTALE; /* stale handle */
    case 4: return -EMFILE; /* too many publications or waiting clients */
    default: return -EPROTO;
    }
}

static inline int64_t bulkhead_ipc__until(int timeout_ms) {
    return timeout_ms < 0 ? -1 : bulkhead_ipc__now() + timeout_ms;
}

/* ---- the functions ---- */

/* Publishes an offer under a name. It stands until bulkhead_ipc_done, or until the program ends. The GPU must be done with
 * the buffer, unless the offer has an event. Answers a descriptor, or -EEXIST, -ESTALE, -EINVAL, -EMFILE, or what connect
 * says (-ENOENT: this program is in no zone). */
static inline int bulkhead_ipc_publish(const char *name, const bulkhead_ipc_offer *offer) {
    bulkhead_ipc__message message;
    int fd, result;
    memset(&message, 0, sizeof message);
    message.kind = 1;
    if (strchr(name, '/') || offer->note_len > BULKHEAD_IPC_NOTE) return -EINVAL;
    if ((result = bulkhead_ipc__name(&message, name)) < 0) return result;
    message.bytes = offer->bytes;
    message.offset = offer->offset;
    memcpy(message.memory, offer->memory, sizeof message.memory);
    memcpy(message.event, offer->event, sizeof message.event);
    message.note_len = offer->note_len;
    memcpy(message.note, offer->note, offer->note_len);
    if ((fd = bulkhead_ipc__connect()) < 0) return fd;
    result = bulkhead_ipc__say(fd, &message);
    if (result == 0) result = bulkhead_ipc__hear(fd, &message, bulkhead_ipc__until(10000));
    if (result == 1 && message.kind == 101) return fd;
    close(fd);
    return result == 0 ? -ETIMEDOUT : result < 0 ? result : bulkhead_ipc__refusal(message.code);
}

/* Waits until NAME (or ZONE/NAME) is published; timeout_ms < 0: for ever. Answers a descriptor, or -ETIMEDOUT and the
 * like. */
static inline int bulkhead_ipc_wait(const char *name, int timeout_ms, bulkhead_ipc_offer *offer) {
    int64_t until = bulkhead_ipc__until(timeout_ms);
    bulkhead_ipc__message message;
    int fd, result;
    memset(&message, 0, sizeof message);
    memset(offer, 0, sizeof *offer);
    message.kind = 2;
    if ((result = bulkhead_ipc__name(&message, name)) < 0) return result;
    if ((fd = bulkhead_ipc__connect()) < 0) return fd;
    result = bulkhead_ipc__say(fd, &message);
    if (result == 0) result = bulkhead_ipc__hear(fd, &message, until);
    if (result != 1 || message.kind != 102) {
        close(fd);
        return result == 0 ? -ETIMEDOUT : result < 0 ? result : bulkhead_ipc__refusal(message.code);
    }
    offer->bytes = message.bytes;
    offer->offset = message.offset;
    memcpy(offer->memory, message.memory, sizeof offer->memory);
    memcpy(offer->event, message.event, sizeof offer->event);
    memcpy(offer->zone, message.zone, sizeof offer->zone);
    offer->note_len = message.note_len <= BULKHEAD_IPC_NOTE ? (size_t)message.note_len : 0;
    memcpy(offer->note, message.note, offer->note_len);
    return fd;
}

/* What happens on the other side: 1 and the event; 0 when nothing did in time; -EPIPE when the proxy is gone. */
static inline int bulkhead_ipc_next(int fd, int timeout_ms, bulkhead_ipc_event *event) {
    bulkhead_ipc__message message;
    int result = bulkhead_ipc__hear(fd, &message, bulkhead_ipc__until(timeout_ms));
    if (result != 1) return result;
    memset(event, 0, sizeof *event);
    event->kind = message.kind;
    event->code = message.code;
    event->number = message.number;
    memcpy(event->zone, message.zone, sizeof event->zone);
    return message.kind == 109 ? bulkhead_ipc__refusal(message.code) : 1;
}

/* For a producer: waits until so many consumers are done. Answers how many of them died, -ETIMEDOUT, or -EPIPE. */
static inline int bulkhead_ipc_wait_done(int fd, int consumers, int timeout_ms) {
    int64_t until = bulkhead_ipc__until(timeout_ms);
    bulkhead_ipc__message message;
    int died = 0;
    while (consumers > 0) {
        int result = bulkhead_ipc__hear(fd, &message, until);
        if (result < 0) return result;
        if (result == 0) return -ETIMEDOUT;
        if (message.kind == 109) return bulkhead_ipc__refusal(message.code);
        if (message.kind == BULKHEAD_IPC_FINISHED || message.kind == BULKHEAD_IPC_LOST) consumers--;
        if (message.kind == BULKHEAD_IPC_LOST) died++;
    }
    return died;
}

/* Tells the other side that this one is done, and closes the descriptor. */
static inline int bulkhead_ipc_done(int fd) {
    bulkhead_ipc__message message;
    int result;
    memset(&message, 0, sizeof message);
    message.kind = 3;
    result = bulkhead_ipc__say(fd, &message);
    close(fd);
    return result;
}

#ifdef __cplusplus
}
#endif

#endif
