// Asks NVML what a program in a zone would, and prints one line for each answer.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

typedef struct { process_t head; unsigned long long protected; char name[4096]; } hidden_t;

static void *library;

static void *find(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("missing %s\n", name);
        exit(1);
    }
    return symbol;
}

#define CALL(name, ...) ((int (*)())find(name))(__VA_ARGS__)

int main(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    unsigned count = 99;
    printf("before init %d\n", CALL("nvmlDeviceGetCount_v2", &count));
    int init = CALL("nvmlInit_v2");
    printf("init %d\n", init);
    if (init) return 0;
    printf("again %d\n", CALL("nvmlInitWithFlags", 0));
    printf("count %d", CALL("nvmlDeviceGetCount_v2", &count));
    printf(" %u\n", count);
    device_t device, other = NULL;
    printf("handle %d\n", CALL("nvmlDeviceGetHandleByIndex_v2", 0, &device));
    printf("no such index %d\n", CALL("nvmlDeviceGetHandleByIndex_v2", count, &other));
    char text[96];
    printf("name %d", CALL("nvmlDeviceGetName", device, text, 96));
    printf(" %s\n", text);
    printf("short name %d\n", CALL("nvmlDeviceGetName", device, text, 4));
    printf("uuid %d", CALL("nvmlDeviceGetUUID", device, text, 96));
    printf(" %s\n", text);
    int found = CALL("nvmlDeviceGetHandleByUUID", text, &other);
    printf("by uuid %d %d\n", found, other == device);
    printf("no such uuid %d\n", CALL("nvmlDeviceGetHandleByUUID", "GPU-0", &other));
    pci_t pci;
    printf("pci %d", CALL("nvmlDeviceGetPciInfo_v3", device, &pci));
    printf(" %s %s\n", pci.legacy, pci.bus_id);
    other = NULL;
    found = CALL("nvmlDeviceGetHandleByPciBusId_v2", pci.bus_id, &other);
    printf("by bus %d %d\n", found, other == device);
    memory_t memory;
    printf("memory %d", CALL("nvmlDeviceGetMemoryInfo", device, &memory));
    printf(" %llu %llu %llu\n", memory.total, memory.used, memory.free);
    memory_v2_t second = {.version = sizeof(memory_v2_t) | 2 << 24};
    printf("memory v2 %d", CALL("nvmlDeviceGetMemoryInfo_v2", device, &second));
    printf(" %llu %llu %llu\n", second.total, second.used, second.free);
    second.version = 1;
    printf("memory v3 %d\n", CALL("nvmlDeviceGetMemoryInfo_v2", device, &second));
    process_t processes[8];
    count = 0;
    printf("no room %d", CALL("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, NULL));
    printf(" %u\n", count);
    count = 8;
    printf("processes %d", CALL("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, processes));
    for (unsigned at = 0; at < count && at < 8; at++) printf(" %u=%llu", processes[at].pid, processes[at].used);
    printf("\n");
    count = 8;
    printf("graphics %d", CALL("nvmlDeviceGetGraphicsRunningProcesses_v3", device, &count, processes));
    printf(" %u\n", count);
    // As nvidia-smi asks: through a table of functions without names.
    static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                         0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    int (**table)() = NULL;
    printf("table %d", CALL("nvmlInternalGetExportTable", &table, id));
    printf(" %d\n", table != NULL && *(size_t *)table > 215 * sizeof *table);
    other = NULL;
    found = table[81](0, &other, 0x22);
    printf("hidden handle %d %d\n", found, other == device);
    hidden_t *hidden = calloc(8, sizeof *hidden);
    count = 8;
    printf("hidden processes %d", table[213](device, &count, hidden));
    for (unsigned at = 0; at < count && at < 8; at++)
        printf(" %u=%llu=%s", hidden[at].head.pid, hidden[at].head.used, hidden[at].name);
    count = 8;
    printf("\nhidden graphics %d", table[214](device, &count, hidden));
    printf(" %u\nhidden gap %d\n", count, table[300](device, &count));
    printf("temperature %d\n", CALL("nvmlDeviceGetTemperature", device, 0, &count));
    printf("set %d\n", CALL("nvmlDeviceSetPersistenceMode", device, 1));
    printf("bad handle %d\n", CALL("nvmlDeviceGetName", (device_t)&memory, text, 96));
    int version = 0;
    printf("cuda %d", CALL("nvmlSystemGetCudaDriverVersion_v2", &version));
    printf(" %d\n", version);
    printf("shutdown %d", CALL("nvmlShutdown"));
    printf(" %d", CALL("nvmlDeviceGetName", device, text, 96));
    printf(" %d", CALL("nvmlShutdown"));
    printf(" %d", CALL("nvmlDeviceGetName", device, text, 96));
    printf(" %d\n", CALL("nvmlShutdown"));
    return 0;
}
