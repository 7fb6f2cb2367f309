#include "comm/world/engine_choice.h"

#include <algorithm>
#include <functional>

#include "comm/algo/algorithm.h"
#include "comm/call/nodes.h"
#include "comm/engine/node_engine.h"
#include "comm/tune/selector.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

EngineProfile profile_of(const std::string& word, const std::string& name) {
  if (const EngineKind* const kind = find_engine(name)) return kind->profile;
  if (const EngineProfile* const known = known_engine(name)) return *known;
  throw UsageError("LOCKSTEP_ENGINE='" + word +
                   "' is not understood; accepted: " + listed(engine_words(engine_profiles())));
}

EngineChoice choice_of(const std::string& word) {
  const std::size_t plus = word.find('+');
  if (plus == std::string::npos) return {profile_of(word, word)};
  const EngineProfile inside = profile_of(word, word.substr(0, plus));
  const EngineProfile across = profile_of(word, word.substr(plus + 1));
  return {across, inside};
}

// The words of this program that name a choice which fits, "auto" among them.
std::string accepted(const std::function<bool(const EngineChoice&)>& fits) {
  std::vector<std::string> words = engine_words(engine_profiles());
  std::erase_if(words, [&](const std::string& word) { return word != "auto" && !fits(choice_of(word)); });
  return listed(words);
}

// Before there is one of its kind: only what it can do says more.
bool works_on(const EngineProfile& profile, Device::Kind device) {
  if (device == Device::Kind::cpu) return true;
  if (const EngineKind* const kind = find_engine(profile.name)) return kind->can().devices.has(device);
  return profile.gpus && device == Device::Kind::cuda;
}

// Profiles of this program's engines and of those that are known besides: what may be asked for.
std::vector<EngineProfile> all_profiles() {
  std::vector<EngineProfile> profiles(std::begin(kKnownEngines), std::end(kKnownEngines));
  for (const EngineProfile& one : engine_profiles())
    if (known_engine(one.name) == nullptr) profiles.push_back(one);
  return profiles;
}

// The first of this program's that fits; there is one, since this library has some.
EngineProfile first(const std::function<bool(const EngineProfile&)>& fits) {
  for (const EngineProfile& one : engine_profiles())
    if (fits(one)) return one;
  throw SystemError("no engine of this program can carry the group");
}

EngineProfile first_that_meets(bool several_machines) {
  return first([&](const EngineProfile& one) {
    return one.meets == Meets::alone && (one.several_machines || !several_machines);
  });
}

EngineChoice usual(const Membership& who, bool started_by_mpi) {
  if (who.one_machine || who.size == 1) return {first_that_meets(false)};
  const EngineProfile inside = first([](const EngineProfile& one) { return one.inside; });
  for (const EngineProfile& one : engine_profiles())
    if (who.whole_job && started_by_mpi && one.meets == Meets::by_mpirun) return {one, inside};
  return {first_that_meets(true), inside};
}

// On GPUs: the first for one machine, where all are on one; else the first for several.
EngineChoice usual_on(Device::Kind device, const Membership& who) {
  const bool one_machine = who.one_machine || who.size == 1;
  std::vector<std::string> missing;
  for (const EngineProfile& one : all_profiles()) {
    if (!works_on(one, device) || (!one.several_machines && !one_machine)) continue;
    if (find_engine(one.name) != nullptr) return {one};
    missing.emplace_back(one.name);
  }
  throw UsageError(std::string("no engine of this program works on ") + to_string(device) +
                   (missing.empty() ? ""
                                    : "; it was built without " + listed(missing) +
                                          " (`lockstep tune --engines` says what they need)"));
}

bool is_mpiruns(const EngineChoice& choice) {
  return choice.engine.meets == Meets::by_mpirun ||
         (choice.inside && choice.inside->meets == Meets::by_mpirun);
}

bool spans_machines(const EngineChoice& choice) { return choice.engine.several_machines; }

const EngineKind& built(const EngineProfile& profile) {
  if (const EngineKind* const kind = find_engine(profile.name)) return *kind;
  std::vector<std::string> names;
  for (const EngineProfile& one : engine_profiles()) names.emplace_back(one.name);
  throw UsageError(std::string("LOCKSTEP_ENGINE asks for ") + profile.name +
                   ", which this program was built without; it has: " + listed(names));
}

// LOCKSTEP_ALGORITHM may be a name of the engine that was chosen, or asked for where one worker needs none.
// That engine reads it by itself; its carrier, and what is inside nodes, know ours alone.
Knobs without_names_of_others(Knobs knobs, const EngineChoice& choice) {
  if (knobs.algorithm.empty() || find_algorithm(knobs.algorithm) != nullptr) return knobs;
  std::vector<std::string> names;
  const auto add = [&](const EngineChoice& one) {
    if (const EngineKind* const kind = find_engine(one.engine.name))
      names.insert(names.end(), kind->forced.begin(), kind->forced.end());
  };
  add(choice);
  if (knobs.engine != "auto") add(choice_of(knobs.engine));
  if (std::ranges::find(names, knobs.algorithm) == names.end()) {
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    refuse_forced(knobs.algorithm, names);
  }
  knobs.algorithm.clear();
  return knobs;
}

// The engine of the ranks of `flat` that give one colour: carried by that part of it, or the part itself.
// Null for a negative colour. Collective over `flat`.
std::unique_ptr<Engine> part_of_flat(const EngineKind& kind, Engine& flat, int colour, int key,
                                     const Membership& who, const Knobs& knobs, const Call& call) {
  auto part = flat.split(colour, key, who.group, call);
  if (part == nullptr || kind.profile.meets != Meets::over_another) return part;
  Membership members = who;
  members.rank = part->rank();
  members.size = part->size();
  return kind.make(members, knobs, std::move(part));
}

std::unique_ptr<Engine> compose(const EngineChoice& choice, std::unique_ptr<Engine> flat,
                                const Membership& who, const Knobs& knobs) {
  const EngineKind& local = built(*choice.inside);
  const EngineKind& column = built(choice.engine);
  Call call;
  call.what = Collective::split;
  call.timeout = knobs.init_timeout;

  const auto members = members_of_nodes(flat->nodes());
  const auto has_me = [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, flat->rank()) != ranks.end();
  };
  const auto node = std::ranges::find_if(members, has_me);
  Membership here = who;
  here.node = static_cast<int>(node - members.begin());
  here.rank = static_cast<int>(std::ranges::find(*node, flat->rank()) - node->begin());
  here.size = static_cast<int>(node->size());
  here.names = flat->rank_names().part(*node);
  std::unique_ptr<Engine> inside;
  if (local.profile.meets == Meets::alone && !local.profile.several_machines) {
    inside = local.make(here, knobs, nullptr);
  } else {
    here.group += "/inside";  // so that its connections are not taken for the whole group's
    inside = part_of_flat(local, *flat, here.node, flat->rank(), here, knobs, call);
  }
  const AcrossMaker across = [&column, who, knobs](Engine& all, int colour, int key, const std::string& group,
                                                   const Call& split) {
    Membership members_of_column = who;
    members_of_column.group = group;
    return part_of_flat(column, all, colour, key, members_of_column, knobs, split);
  };
  return NodeEngine::make(choice.word(), std::move(flat), std::move(inside), across, who.group, call);
}

}  // namespace

std::string EngineChoice::word() const {
  return inside ? std::string(inside->name) + "+" + engine.name : engine.name;
}

EngineChoice choose_engine(const Knobs& knobs, const Membership& who, bool started_by_mpi,
                           Device::Kind device) {
  const bool on_device = device != Device::Kind::cpu;
  if (knobs.engine == "auto") return on_device ? usual_on(device, who) : usual(who, started_by_mpi);
  EngineChoice choice = choice_of(knobs.engine);
  const auto works = [&](const EngineChoice& one) { return !one.inside && works_on(one.engine, device); };
  if (on_device && !works(choice))
    throw UsageError("LOCKSTEP_ENGINE=" + choice.word() + " does not work on " + to_string(device) +
                     "; accepted: " + accepted(works));
  if (choice.inside)
    if (const std::string why = why_not_composed(*choice.inside, choice.engine, all_profiles()); !why.empty())
      throw UsageError("LOCKSTEP_ENGINE=" + choice.word() + ": " + why +
                       "; accepted: " + listed(engine_words(engine_profiles())));
  if (who.size == 1) return on_device ? choice : usual(who, started_by_mpi);
  if (!who.whole_job && is_mpiruns(choice))
    throw UsageError("form_group: LOCKSTEP_ENGINE=" + choice.word() +
                     ", whose ranks are those that mpirun started; accepted: " +
                     accepted([](const EngineChoice& other) { return !is_mpiruns(other); }) +
                     ", or Group::split");
  if (!who.one_machine && !spans_machines(choice))
    throw UsageError("LOCKSTEP_ENGINE=" + choice.word() +
                     (who.whole_job ? ", but of this job's " + std::to_string(who.size) + " workers only " +
                                          std::to_string(who.ranks_here) + " are on this machine"
                                    : ", but members of group " + who.group + " may be on several machines") +
                     "; accepted for several machines: " + accepted(spans_machines));
  return choice;
}

std::unique_ptr<Engine> make_engine(const EngineChoice& choice, const Membership& who, const Knobs& given) {
  const EngineKind& kind = built(choice.engine);
  const Knobs knobs = without_names_of_others(given, choice);
  if (choice.inside) {
    (void)built(*choice.inside);
    const std::vector<EngineProfile> here = engine_profiles();
    return compose(choice, built(*flat_under(choice.engine, here)).make(who, knobs, nullptr), who, knobs);
  }
  if (kind.profile.meets != Meets::over_another) return kind.make(who, knobs, nullptr);
  return kind.make(who, knobs, built(first_that_meets(!who.one_machine)).make(who, knobs, nullptr));
}

}  // namespace lockstep
