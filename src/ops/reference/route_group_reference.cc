#include "ops/fused/route_group.h"

namespace sluice {

Expectations reference(const RouteGroup::Problem& p, const RouteGroup::Args& a) {
  Expectations out = reference(p.route, static_cast<const RouteTopk::Args&>(a));
  std::vector<int32_t> ids;
  for (const Expected& e : out)
    if (e.slot == "ids")
      for (double id : e.value) ids.push_back(static_cast<int32_t>(id));
  const GroupRows::Problem group = RouteGroup::group(p);
  GroupRows::Args grouped = RouteGroup::group(a);
  grouped.ids = make_tensor(ids.data(), DType::kI32, {group.tokens, group.slots});
  for (Expected& e : reference(group, grouped)) out.push_back(std::move(e));
  return out;
}

}  // namespace sluice
