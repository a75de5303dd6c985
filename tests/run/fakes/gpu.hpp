// A GPU that is none: streams are queues of steps in one process, carried out one at a time while somebody waits, in an order that is drawn.
//
// Memory is the process's own, and every device has all of it. A step is taken off its queue once it can go on; what NCCL sends is a step of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace fake {

// can: whether it can go on; empty = always.
struct Step {
  std::function<bool()> can;
  std::function<void()> run;
};

struct Queue {
  std::deque<Step> steps;
};

// Of everything here.
std::recursive_mutex& mutex();
Queue& queue(cudaStream_t stream);
// Queues that are not streams live as long as the process.
Queue* new_queue();
// Carries out steps until none can go on.
void pump();
// A sum of so many steps was launched: fake_most_steps() tells the most of any.
void note_steps(int64_t num);
void push(cudaStream_t stream, std::function<void()> run, std::function<bool()> can = {});

}  // namespace fake
