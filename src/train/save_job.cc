#include "train/save_job.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/torch_types.h"

namespace lockstep {

std::vector<RunForm> FileToSave::forms() const {
  std::vector<RunForm> forms;
  for (const SavedRun& run : runs) forms.push_back(run.form);
  return forms;
}

bool FileToSave::is_streamed() const {
  return std::ranges::any_of(runs, [](const SavedRun& run) { return run.stream != nullptr; });
}

std::uint64_t copy_runs(std::vector<FileToSave>& files) {
  const torch::NoGradGuard no_grad;
  std::uint64_t bytes = 0;
  for (FileToSave& file : files)
    for (SavedRun& run : file.runs) {
      if (run.stream) continue;
      bytes += run.form.bytes();
      if (run.own_copy) continue;
      run.own_copy = true;
      if (!run.tensor.is_cpu()) {
        run.tensor = run.tensor.cpu().contiguous();
        continue;
      }
      // Not libtorch's copy: beside a step that computes it would take all cores.
      const torch::Tensor live = run.tensor.contiguous();
      run.tensor = torch::empty(live.sizes(), live.options());
      if (live.nbytes() > 0) std::memcpy(run.tensor.data_ptr(), live.data_ptr(), live.nbytes());
    }
  return bytes;
}

Manifest write_file_of_runs(const std::filesystem::path& folder, FileToSave& file,
                            const std::function<void()>& read) {
  PartFile part(folder, file.file, file.set, file.forms(), file.metadata);
  for (const std::size_t i : part.order()) {
    if (file.runs[i].stream) {
      file.runs[i].stream([&](std::span<const std::byte> bytes) { part.write(bytes); });
      continue;
    }
    part.write(tensor_bytes(file.runs[i].tensor));
    file.runs[i].tensor = torch::Tensor();
  }
  if (file.is_streamed()) read();
  return part.finish();
}

}  // namespace lockstep
