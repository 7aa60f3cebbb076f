/* NVML of a machine that does not exist: what `STUB_NVML` says, a file that is read at every call.
 *
 *   fail CODE                                             nvmlInit fails
 *   gpu INDEX BUS UUID TOTAL FREE CORES SPLIT NAME...      BUS is a number; SPLIT 1 is MIG mode
 *   instance INDEX PLACE UUID TOTAL FREE NAME...          of the GPU INDEX
 *   lost INDEX                                            its handle is refused
 *   deaf INDEX                                            its memory is not told: GPU is lost
 *   shared INDEX                                          its memory is not told: not supported
 *
 * Compiled by nvml.py beside it as libnvidia-ml.so.1; pynvml loads it in the place of the driver's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
enum { MAX = 8 };

typedef struct { unsigned long long total, free, used; } memory_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;

typedef struct {
    int exists, lost, deaf, shared, split, bus;
    unsigned cores;
    unsigned long long total, free;
    char uuid[96], name[96];
} card_t;

static card_t gpus[MAX], instances[MAX][MAX];
static int failure;

static void name_of(char *to, const char *line, int words) {
    for (; words > 0; words--) line += strcspn(line, " "), line += strspn(line, " ");
    snprintf(to, 96, "%.*s", (int)strcspn(line, "\n"), line);
}

static void read_machine(void) {
    char line[512];
    int i, place;
    card_t c;
    FILE *file = fopen(getenv("STUB_NVML"), "r");
    memset(gpus, 0, sizeof gpus), memset(instances, 0, sizeof instances), failure = 0;
    while (file && fgets(line, sizeof line, file)) {
        memset(&c, 0, sizeof c), c.exists = 1;
        if (sscanf(line, "fail %d", &failure) == 1) continue;
        if (sscanf(line, "gpu %d %d %95s %llu %llu %u %d", &i, &c.bus, c.uuid, &c.total, &c.free,
                   &c.cores, &c.split) == 7)
            name_of(c.name, line, 8), gpus[i] = c;
        else if (sscanf(line, "instance %d %d %95s %llu %llu", &i, &place, c.uuid, &c.total,
                        &c.free) == 5)
            name_of(c.name, line, 6), instances[i][place] = c;
        else if (sscanf(line, "lost %d", &i) == 1) gpus[i].lost = 1;
        else if (sscanf(line, "deaf %d", &i) == 1) gpus[i].deaf = 1;
        else if (sscanf(line, "shared %d", &i) == 1) gpus[i].shared = 1;
    }
    if (file) fclose(file);
}

static int whole(const card_t *card) { return card >= gpus && card < gpus + MAX; }

int nvmlInitWithFlags(unsigned flags) { (void)flags, read_machine(); return failure; }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : code == NOT_FOUND ? "Not Found" : "stub error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    for (*count = 0; *count < MAX && gpus[*count].exists; ++*count) {}
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
    if (index >= MAX || !gpus[index].exists) return INVALID;
    *card = &gpus[index];
    return gpus[index].lost ? GPU_IS_LOST : OK;
}

int nvmlDeviceGetPciInfo_v3(const card_t *card, pci_t *pci) {
    if (!whole(card)) return NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    pci->bus = card->bus;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", card->bus);
    return OK;
}

int nvmlDeviceGetUUID(const card_t *card, char *uuid, unsigned length) {
    return snprintf(uuid, length, "%s", card->uuid), OK;
}

int nvmlDeviceGetName(const card_t *card, char *name, unsigned length) {
    return snprintf(name, length, "%s", card->name), OK;
}

int nvmlDeviceGetMemoryInfo(const card_t *card, memory_t *memory) {
    if (card->deaf) return GPU_IS_LOST;
    if (card->shared) return NOT_SUPPORTED;
    memory->total = card->total, memory->free = card->free;
    memory->used = card->total - card->free;
    return OK;
}

int nvmlDeviceGetNumGpuCores(const card_t *card, unsigned *cores) {
    *cores = card->cores;
    return card->cores ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxClockInfo(const card_t *card, int clock, unsigned *mhz) {
    (void)card, (void)clock, *mhz = 1500;
    return OK;
}

int nvmlDeviceGetMigMode(const card_t *card, unsigned *current, unsigned *pending) {
    *current = *pending = card->split;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(const card_t *card, unsigned *count) {
    (void)card, *count = MAX;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const card_t *card, unsigned index, card_t **instance) {
    *instance = &instances[card - gpus][index];
    return (*instance)->exists ? OK : NOT_FOUND;
}
