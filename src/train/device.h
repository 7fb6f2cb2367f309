// Where a run computes: on the processor, or on a GPU.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/comm/buffer.h"
#include "lockstep/data/dataset.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

// Of "cpu", "cuda" or "cuda:1". "cuda" is this worker's own: its local rank modulo the number of GPUs, so
// that several workers share one where there are fewer. Throws UsageError where it is no such name, where
// this build has no CUDA, and where there is no such GPU.
torch::Device find_device(const std::string& name, int local_rank);

// What InitOptions::device is to be for it: before there is a group. Says nothing of a name that is none.
Device::Kind device_kind(const std::string& name);

// How the GPU's libraries compute, for the whole process; this thread's current GPU is then `device`. Nothing
// is changed on the processor.
struct GpuArithmetic {
  // Kernels that give the same bits each time, or an error of libtorch's that names the operation which has
  // none; cuDNN's are then chosen by rule. Without, the fastest are tried out.
  bool deterministic = false;
  bool tf32 = false;  // products of f32 may round their factors to ten bits
};
void set_arithmetic(torch::Device device, GpuArithmetic arithmetic);

// This worker's by the options, with its libraries set to compute as they say. Throws UsageError as
// find_device does.
torch::Device begin_device(const TrainerOptions& o);
// To TrainerOptions::gpu_memory_mb. What comm memory has then counts; so once more when there is more of it.
void limit_memory(torch::Device device, const TrainerOptions& o);

// Parameters and buffers move there; with `channels_last` those of four dimensions are then laid out so.
void move_model(torch::nn::Module& model, torch::Device device, bool channels_last);

// A batch there: itself where it is there already. Copies are put on the current stream; from pinned memory
// the host waits for none.
Batch moved(const Batch& batch, torch::Device device, bool channels_last);

// What was given to the device's current stream before is over. Nothing to wait for on the processor.
void wait_for_device(torch::Device device);

// "device": its name, and on a GPU the most memory that libtorch has held there, its size, and how it
// computes.
nlohmann::ordered_json device_figures(torch::Device device, GpuArithmetic arithmetic);

}  // namespace lockstep
