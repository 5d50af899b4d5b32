/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU.
 *
 * GPUs 0 and 1 (STUB_COUNT). What GPU 1 lacks answers "not supported". Variables: STUB_NAMES (by
 * semicolons), STUB_GPM (GPU 0 has performance metrics), STUB_MIG (GPU 1 is divided in two),
 * STUB_XID (an error that GPU 1 reports once), STUB_LOST (GPU 1 is lost after so many readings of
 * its utilisation), STUB_PID (a process on GPU 0), STUB_INIT (what initialising returns).
 * Compiled with OLD_DRIVER it lacks the functions of newer drivers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK 0
#define INVALID 2
#define UNSUPPORTED 3
#define NOT_FOUND 6
#define SMALL 7
#define TIMEOUT 10
#define LOST 15

typedef unsigned int u32;
typedef unsigned long long u64;

/* Two whole GPUs, then the two MIG devices of GPU 1. */
static char devices[4];
static int waits, readings, energy_readings, link_readings, gpm_samples;

static int number(const char *name, int fallback) {
  const char *text = getenv(name);
  return text ? atoi(text) : fallback;
}
static int which(char *device) { return (int)(device - devices); }
static int whole(char *device) { return which(device) >= 2 ? 1 : which(device); }
static int is_part(char *device) { return which(device) >= 2; }
static int count(void) { return number("STUB_COUNT", 2); }

static const char *UUIDS[] = {
    "GPU-11111111-aaaa-0000-0000-000000000000",
    "GPU-22222222-bbbb-0000-0000-000000000000",
    "MIG-33333333-cccc-0000-0000-000000000000",
    "MIG-44444444-dddd-0000-0000-000000000000",
};

int nvmlInitWithFlags(u32 flags) { (void)flags; return number("STUB_INIT", OK); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "Some Error"; }

int nvmlSystemGetDriverVersion(char *text, u32 length) {
  snprintf(text, length, "570.10");
  return OK;
}
int nvmlDeviceGetCount_v2(u32 *found) { *found = count(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, char **device) {
  if ((int)index >= count()) return INVALID;
  *device = &devices[index];
  return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, char **device) {
  for (int i = 0; i < 4; i++)
    if (!strcmp(uuid, UUIDS[i]) && (i < 2 || number("STUB_MIG", 0))) {
      *device = &devices[i];
      return OK;
    }
  return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, char **device) {
  if (!strcmp(bus, "00000000:01:00.0")) { *device = &devices[0]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetIndex(char *device, u32 *index) { *index = whole(device); return OK; }
int nvmlDeviceGetUUID(char *device, char *text, u32 length) {
  snprintf(text, length, "%s", UUIDS[which(device)]);
  return OK;
}
int nvmlDeviceGetName(char *device, char *text, u32 length) {
  char names[200];
  const char *given = getenv("STUB_NAMES");
  snprintf(names, sizeof names, "%s", given ? given : "NVIDIA Stub, 80GB;NVIDIA Stub, 80GB");
  char *second = strchr(names, ';');
  *second++ = 0;
  snprintf(text, length, "%s%s", whole(device) ? second : names, is_part(device) ? " MIG" : "");
  return OK;
}
int nvmlDeviceGetUtilizationRates(char *device, u32 *rates) {
  if (is_part(device)) return UNSUPPORTED;
  if (whole(device) == 1 && number("STUB_LOST", 0) && ++readings > number("STUB_LOST", 0))
    return LOST;
  rates[0] = whole(device) ? 7 : 93;
  rates[1] = whole(device) ? 3 : 41;
  return OK;
}

struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(char *device, struct memory *info) {
  (void)device;
  info->total = 80ull << 30;
  info->used = 21ull << 30;
  info->free = 59ull << 30;
  return OK;
}

int nvmlDeviceGetTemperature(char *device, u32 sensor, u32 *value) {
  (void)sensor;
  *value = 50 + whole(device);
  return OK;
}
int nvmlDeviceGetPowerUsage(char *device, u32 *value) {
  if (whole(device)) return UNSUPPORTED;
  *value = 312345;
  return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(char *device, u32 *value) {
  if (whole(device)) return UNSUPPORTED;
  *value = 700000;
  return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(char *device, u64 *value) {
  if (whole(device)) return UNSUPPORTED;
  *value = 5000000ull + 1500ull * energy_readings++;
  return OK;
}
int nvmlDeviceGetClockInfo(char *device, u32 kind, u32 *value) {
  *value = 1000 + 100 * kind + whole(device);
  return OK;
}
int nvmlDeviceGetPerformanceState(char *device, u32 *state) {
  *state = whole(device) ? 32 : 0;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(char *device, u64 *mask) {
  *mask = whole(device) ? 0x1 : 0x24;
  return OK;
}
int nvmlDeviceGetPcieThroughput(char *device, u32 way, u32 *value) {
  (void)device;
  *value = way ? 5000 : 2500;
  return OK;
}
int nvmlDeviceGetTotalEccErrors(char *device, u32 kind, u32 counter, u64 *value) {
  (void)counter;
  if (whole(device)) return UNSUPPORTED;
  *value = kind ? 2 : 17;
  return OK;
}
int nvmlDeviceGetMigMode(char *device, u32 *now, u32 *pending) {
  if (whole(device) == 0) return UNSUPPORTED;
  *now = *pending = number("STUB_MIG", 0);
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(char *device, u32 *most) { (void)device; *most = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(char *device, u32 index, char **part) {
  (void)device;
  if (index > 1) return NOT_FOUND;
  *part = &devices[2 + index];
  return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(char *part, char **device) {
  if (!is_part(part)) return INVALID;
  *device = &devices[1];
  return OK;
}
int nvmlDeviceGetGpuInstanceId(char *part, u32 *id) {
  if (!is_part(part)) return INVALID;
  *id = 5 + which(part);
  return OK;
}

#ifndef OLD_DRIVER
struct memory2 { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(char *device, struct memory2 *info) {
  u64 part = is_part(device) ? 4 : 1;
  if (info->version != 0x02000028) return 25;
  info->total = (80ull << 30) / part;
  info->reserved = (1ull << 30) / part;
  info->used = (20ull << 30) / part;
  info->free = (59ull << 30) / part;
  return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(char *device, u64 *mask) {
  return nvmlDeviceGetCurrentClocksThrottleReasons(device, mask);
}

struct field { u32 id, scope; long long timestamp, latency; u32 type, result; u64 value; };
int nvmlDeviceGetFieldValues(char *device, int many, struct field *fields) {
  for (int i = 0; i < many; i++) {
    fields[i].result = OK;
    fields[i].type = 1; /* unsigned int */
    switch (fields[i].id) {
      case 82: fields[i].value = 61; if (whole(device)) fields[i].result = UNSUPPORTED; break;
      case 186: fields[i].value = 400000; break;
      case 138:
      case 139:
        fields[i].type = 3; /* unsigned long long */
        fields[i].value = (u64)(fields[i].id - 137) * 1000000ull * ++link_readings;
        if (whole(device) || fields[i].scope != 0xFFFFFFFFu) fields[i].result = UNSUPPORTED;
        break;
      default: fields[i].result = INVALID;
    }
  }
  return OK;
}

static char event_set;
int nvmlEventSetCreate(char **set) { *set = &event_set; return OK; }
int nvmlDeviceRegisterEvents(char *device, u64 kinds, char *set) {
  if (set != &event_set || kinds != 8) return INVALID;
  (void)device;
  return OK;
}
struct event { char *device; u64 kind, data; u32 gpu_instance, compute_instance; };
int nvmlEventSetWait_v2(char *set, struct event *event, u32 patience) {
  (void)set;
  if (patience) return INVALID;
  if (!number("STUB_XID", 0) || ++waits != 2) return TIMEOUT;
  event->device = &devices[1];
  event->kind = 8;
  event->data = number("STUB_XID", 0);
  return OK;
}
int nvmlEventSetFree(char *set) { (void)set; return OK; }

struct support { u32 version, is_supported; };
int nvmlGpmQueryDeviceSupport(char *device, struct support *support) {
  if (support->version != 1) return 25;
  support->is_supported = number("STUB_GPM", 0) && (whole(device) == 0 || number("STUB_MIG", 0));
  return OK;
}
int nvmlGpmSampleAlloc(int **sample) { *sample = calloc(1, sizeof(int)); return OK; }
int nvmlGpmSampleFree(int *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(char *device, int *sample) {
  if (is_part(device)) return INVALID;
  *sample = ++gpm_samples;
  return OK;
}
int nvmlGpmMigSampleGet(char *device, u32 instance, int *sample) {
  if (is_part(device) || instance < 7) return INVALID;
  *sample = ++gpm_samples;
  return OK;
}
struct metric { u32 id, result; double value; const char *names[3]; };
struct request { u32 version, many; int *first, *second; struct metric metrics[]; };
int nvmlGpmMetricsGet(struct request *request) {
  if (request->version != 1 || *request->second <= *request->first) return INVALID;
  for (u32 i = 0; i < request->many; i++) {
    struct metric *metric = &request->metrics[i];
    metric->result = OK;
    metric->value = metric->id + 0.5;
    if (metric->id == 11) metric->result = UNSUPPORTED;          /* FP64 */
    if (metric->id == 20) metric->value = 1000.0;                /* PCIe sent, MiB/s */
    if (metric->id == 60) metric->result = UNSUPPORTED;          /* NVLink received */
  }
  return OK;
}

struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(char *device, u32 *many, struct process *found) {
  if (whole(device) || !number("STUB_PID", 0)) { *many = 0; return OK; }
  if (*many < 2) { *many = 2; return SMALL; }
  *many = 2;
  found[0].pid = number("STUB_PID", 0);
  found[0].memory = 3ull << 30;
  found[1].pid = 1;
  found[1].memory = 5ull << 30;
  return OK;
}
#endif
