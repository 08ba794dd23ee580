#include "apps/common/json.h"
#include "apps/inspect/inspect.h"

namespace sluice::apps {

std::string inspection_json(const Inspection& i) {
  OrderedJson tensors = OrderedJson::array();
  for (const InspectedTensor& t : i.tensors) {
    OrderedJson one = {
        {"name", t.name}, {"type", t.type}, {"file", t.file}, {"bytes", t.bytes}, {"use", t.use}};
    if (!t.wrong.empty()) one["wrong"] = t.wrong;
    tensors.push_back(std::move(one));
  }
  return json_text({{"path", i.path},
                    {"architecture", i.architecture},
                    {"note", i.note},
                    {"bytes", i.bytes},
                    {"tensors", tensors},
                    {"missing", i.missing}});
}

}  // namespace sluice::apps
