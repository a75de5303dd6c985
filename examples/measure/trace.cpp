// What the GPU did, as CUPTI saw it: one line a copy, kernel or memset, in a file. Loaded by trace.py.
//
//     copy <stream> <start ns> <end ns> <bytes> <copies> <channel> <kind>
//     kernel <stream> <start ns> <end ns> <CTAs> 1 <channel> <name>
//     memset <stream> <start ns> <end ns> <bytes> 1 <channel> 0
//
// channel and kind are CUpti_ChannelType and CUpti_ActivityMemcpyKind. A batched copy may be one line of several copies.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20, kAlignment = 8;
std::FILE* out = nullptr;

void CUPTIAPI requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void write(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& c = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    std::fprintf(out, "copy %u %llu %llu %llu %llu %d %d\n", c.streamId, (unsigned long long)c.start, (unsigned long long)c.end, (unsigned long long)c.bytes,
                 (unsigned long long)c.copyCount, (int)c.channelType, (int)c.copyKind);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto& m = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    std::fprintf(out, "memset %u %llu %llu %llu 1 %d 0\n", m.streamId, (unsigned long long)m.start, (unsigned long long)m.end, (unsigned long long)m.bytes, (int)m.channelType);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto& k = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    std::fprintf(out, "kernel %u %llu %llu %d 1 %d %s\n", k.streamId, (unsigned long long)k.start, (unsigned long long)k.end, k.gridX * k.gridY * k.gridZ, (int)k.channelType, k.name);
  }
}

void CUPTIAPI completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) write(record);
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL};

}  // namespace

// Both give 0, or CUPTI's error; trace_end gives -1 where records were lost.
extern "C" int trace_begin(const char* path) {
  out = std::fopen(path, "w");
  if (out == nullptr) return -2;
  CUptiResult error = cuptiActivityRegisterCallbacks(requested, completed);
  for (const CUpti_ActivityKind kind : kKinds) error = error == CUPTI_SUCCESS ? cuptiActivityEnable(kind) : error;
  return error;
}

extern "C" int trace_end() {
  CUptiResult error = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  for (const CUpti_ActivityKind kind : kKinds) error = error == CUPTI_SUCCESS ? cuptiActivityDisable(kind) : error;
  size_t lost = 0;
  if (error == CUPTI_SUCCESS) error = cuptiActivityGetNumDroppedRecords(nullptr, 0, &lost);
  std::fclose(out);
  return lost > 0 ? -1 : error;
}
