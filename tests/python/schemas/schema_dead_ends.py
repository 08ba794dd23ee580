"""Random schemas that refuse values at their end: unique items of many values, unevaluatedItems, and negated keywords of objects. If the
grammar allowed every locally valid token, an answer could reach a point at which no token is allowed."""
from __future__ import annotations

import random

from schema_combinations import SOURCE

NAMES = "abcdefgh"


class Maker:
    def __init__(self, seed: str):
        self.draws = random.Random(seed)

    def some(self, probability: float) -> bool:
        return self.draws.random() < probability

    def scalar(self):
        n = self.draws.randint
        return self.draws.choice([
            {"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": self.draws.choice([1, 2, 3, 9])}, {"enum": ["a", "b", "c"][:n(1, 3)]},
            {"const": 1}, {"type": ["boolean", "null"]}, {"type": "string", "pattern": f"^[ab]{{1,{n(1, 3)}}}$"}, {"type": "string", "maxLength": 1, "pattern": "^[0-9]*$"}])

    def value(self, depth: int):
        if depth > 1 or self.some(0.5):
            return self.scalar()
        return self.object(depth) if self.some(0.5) else self.array(depth)

    def object(self, depth: int = 0):
        names = self.draws.sample(NAMES, self.draws.randint(1, 4))
        out = {"type": "object", "properties": {name: self.value(depth + 1) for name in names}}
        if self.some(0.7):
            out["required"] = self.draws.sample(names, self.draws.randint(0, len(names)))
        if self.some(0.7):
            out["additionalProperties"] = False
        elif self.some(0.3):
            out["additionalProperties"] = self.scalar()
        for key in ("minProperties", "maxProperties"):
            if self.some(0.15):
                out[key] = self.draws.randint(1, 4)
        return out

    def array(self, depth: int = 0):
        out = {"type": "array"}
        if self.some(0.5):
            out["prefixItems"] = [self.value(depth + 1) for _ in range(self.draws.randint(1, 3))]
        if self.some(0.6):
            out["items"] = False if self.some(0.3) else self.value(depth + 1)
        if self.some(0.4):
            out["minItems"] = self.draws.randint(0, 5)
        if self.some(0.3):
            out["uniqueItems"] = True
        return out

    def unique(self):
        """Arrays whose maximum length is the number of possible values."""
        flags = {name: {"type": "boolean"} for name in NAMES[:self.draws.randint(5, 8)]}
        digits = {"type": "integer", "minimum": 0, "maximum": self.draws.randint(7, 11)}
        bits = self.draws.randint(4, 6)
        item, values = self.draws.choice([
            ({"type": "object", "properties": flags, "required": list(flags), "additionalProperties": False}, 2**len(flags)),
            ({"type": "array", "prefixItems": [digits, digits], "minItems": 2, "items": False}, (digits["maximum"] + 1)**2),
            ({"type": "array", "prefixItems": [digits, digits], "minItems": 2, "items": False, "uniqueItems": True}, (digits["maximum"] + 1) * digits["maximum"]),
            ({"type": "array", "items": {"type": "boolean"}, "maxItems": bits}, 2**(bits + 1) - 1),
            ({"type": "integer", "minimum": 0, "maximum": 79, "not": {"multipleOf": self.draws.choice([2, 3])}}, 40),
            ({"enum": [{"a": i} for i in range(80)]}, 80)])
        least = self.draws.choice([values + 1, values, values - 5, self.draws.randint(2, 30), self.draws.randint(2, 30)])
        out = {"type": "array", "items": item, "uniqueItems": True, "minItems": least}
        if self.some(0.3):
            out["maxItems"] = least + self.draws.randint(0, 3)
        return out

    def unevaluated(self):
        def part():
            return self.draws.choice([{"prefixItems": [self.scalar() for _ in range(self.draws.randint(1, 3))]}, {"contains": self.scalar()}, {"items": self.scalar()}])

        out = {"type": "array", "unevaluatedItems": False if self.some(0.5) else self.scalar()}
        for key in self.draws.sample(["prefixItems", "allOf", "anyOf", "oneOf", "if", "contains", "minItems", "maxItems", "not", "uniqueItems"], self.draws.randint(1, 3)):
            if key in ("allOf", "anyOf", "oneOf"):
                out[key] = [part() for _ in range(self.draws.randint(1, 3))]
            else:
                out[key] = {"prefixItems": lambda: [self.scalar()], "if": part, "contains": self.scalar, "minItems": lambda: 2, "maxItems": lambda: 3, "not": part,
                            "uniqueItems": lambda: True}[key]()
            if key == "if":
                out["then"] = part()
        return out

    def keyword(self):
        name = self.draws.choice(NAMES)
        return self.draws.choice([
            {"required": self.draws.sample(NAMES, 2)}, {"properties": {name: self.scalar()}}, {"additionalProperties": self.scalar()}, {"patternProperties": {"^[a-d]": self.scalar()}},
            {"propertyNames": {"pattern": "^[a-d]"}}, {"dependentSchemas": {name: self.scalar()}}, {"dependentRequired": {name: [self.draws.choice(NAMES)]}},
            {"minProperties": self.draws.randint(1, 4)}, self.object(), {"const": {name: True}}, {"enum": [{}, {name: 1}]},
            {"properties": {name: self.scalar()}, "unevaluatedProperties": False}, {"required": [name], "properties": {name: self.scalar()}}])

    def negated(self):
        one, two, three = self.keyword(), self.keyword(), self.keyword()
        return self.object() | self.draws.choice([{"not": one}, {"not": {"allOf": [one, two]}}, {"not": {"anyOf": [one, two]}}, {"oneOf": [one, two]},
                                                  {"if": one, "then": two}, {"if": one, "then": two, "else": three}])


def lines(seed: str, count: int) -> list[dict]:
    maker = Maker(f"dead ends {seed}")
    kinds = ("unique", "unevaluated", "negated")
    return [{"id": f"dead-ends/{kinds[i % 3]}/{i}", "source": SOURCE, "schema": getattr(maker, kinds[i % 3])()} for i in range(count)]
