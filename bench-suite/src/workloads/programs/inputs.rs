//! What the programs work on: scripts and generated sources. `n` scales the work; the same `n` gives the same text.

use std::fmt::Write;

/// Dictionaries, lists, strings and objects, for Python.
pub fn python(n: usize) -> String {
    format!(
        "import json
class Node:
    def __init__(self, key, left):
        self.key, self.left, self.tags = key, left, [key, str(key)]
total, kept = 0, []
for r in range({n}):
    words = {{}}
    for i in range(8000):
        words['w%d' % (i * 7919 % 5003)] = words.get('w%d' % (i * 7919 % 5003), 0) + i
    node = None
    for i in range(4000):
        node = Node(i, node)
    text = json.dumps(words)
    back = json.loads(text)
    total += sum(back.values()) + len(text) + len(sorted(back)) + node.key
    kept.append([bytes(64 + i % 2000) for i in range(500)])
    if len(kept) > 8:
        kept.pop(0)
print(total, sum(len(b) for k in kept for b in k))
"
    )
}

/// Functions with loops, structures and switches, for the C compiler.
pub fn c(n: usize) -> String {
    let mut text = String::from("struct item { struct item *next; long key; char name[32]; };\n");
    for i in 0..n {
        let _ = write!(
            text,
            "static long pick_{i}(long a, struct item *p) {{\n  long sum = {i};\n  for (; p; p = p->next) {{\n    \
             switch ((p->key + a) % 7) {{\n    case 0: sum += p->key * {i}; break;\n    case 3: sum ^= a << ({i} % 13); break;\n    \
             case 5: sum -= p->name[{i} % 32]; break;\n    default: sum = sum * 31 + (a > {i} ? a : p->key);\n    }}\n  }}\n  return sum;\n}}\n\
             long entry_{i}(long a, struct item *p) {{ long s = 0; for (int k = 0; k < {i}; k++) s += pick_{i}(a + k, p); return s; }}\n"
        );
    }
    text
}

/// Class templates over the standard containers, for the C++ compiler.
pub fn cxx(n: usize) -> String {
    let mut text = String::from(
        "#include <map>\n#include <string>\n#include <vector>\ntemplate <int N> struct key { int v; bool operator<(const \
         key &o) const { return v % (N + 1) < o.v % (N + 1); } };\n",
    );
    for i in 0..n {
        let _ = writeln!(
            text,
            "int use_{i}(int a) {{ std::map<key<{i}>, std::vector<std::string>> m; m[key<{i}>{{a}}].push_back(\"x{i}\"); \
             int s = 0; for (auto &e : m) s += e.first.v + (int)e.second.size(); return s; }}"
        );
    }
    text
}

/// Hashes of arrays, joins, sorts and regular expressions, for Perl.
pub fn perl(n: usize) -> String {
    format!(
        "use strict; my ($total, @kept) = (0);
for my $r (1 .. {n}) {{
    my %h;
    for my $i (1 .. 12000) {{ push @{{$h{{'k' . ($i * 7919 % 3001)}}}}, $i; }}
    my $text = join ',', map {{ \"$_=@{{$h{{$_}}}}\" }} sort keys %h;
    while ($text =~ /k(\\d+)=(\\d+)/g) {{ $total += $1 + $2; }}
    my @parts = split /,/, $text;
    $total += length($_) for reverse @parts;
    push @kept, \\@parts; shift @kept if @kept > 5;
}}
print \"$total\\n\";
"
    )
}

/// A table, its indexes, joins, groups and deletes, for SQLite, in memory.
pub fn sqlite(n: usize) -> String {
    let rows = 4000 * n;
    format!(
        "PRAGMA temp_store=MEMORY;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < {rows})
INSERT INTO t SELECT i, i * 7919 % 10007, 'name-' || (i * 31 % 997) || '-' || i FROM c;
CREATE INDEX by_k ON t(k); CREATE INDEX by_name ON t(name);
SELECT count(*), sum(k), max(name) FROM t;
SELECT k % 10, count(*), group_concat(substr(name, 1, 6)) FROM (SELECT * FROM t ORDER BY name LIMIT 2000) GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM t a JOIN t b ON a.k = b.k AND a.id < b.id;
DELETE FROM t WHERE k % 3 = 0; VACUUM;
SELECT count(*), sum(length(name)) FROM t;
"
    )
}

/// Associative arrays and string building, for awk.
pub fn awk(n: usize) -> String {
    format!(
        "BEGIN {{
    for (r = 0; r < {n}; r++) {{
        delete count
        for (i = 0; i < 20000; i++) {{ count[\"w\" (i * 7919 % 6007)] += i; s = s \"x\"; }}
        m = split(s, parts, \"\"); s = \"\"
        for (w in count) total += count[w] + length(w)
        total += m
    }}
    printf \"%d\\n\", total
}}
"
    )
}

/// Tables, closures and strings, for Lua.
pub fn lua(n: usize) -> String {
    format!(
        "local total, kept = 0, {{}}
for r = 1, {n} do
  local t = {{}}
  for i = 1, 12000 do
    t[i] = {{ id = i, name = 'n' .. (i * 7919 % 5003), f = function() return i + r end }}
  end
  table.sort(t, function(a, b) if a.name == b.name then return a.id < b.id end return a.name < b.name end)
  local parts = {{}}
  for i, e in ipairs(t) do total = total + e.f(); parts[#parts + 1] = e.name end
  kept[r % 4 + 1] = table.concat(parts, ',')
end
local length = 0
for _, s in pairs(kept) do length = length + #s end
print(string.format('%d %d', total, length))
"
    )
}

/// Puts `n` files under version control, changes some, packs everything and looks back.
pub fn git(n: usize) -> String {
    format!(
        "set -e
git init -q repo; cd repo
i=0; while [ $i -lt {n} ]; do
  d=d$((i % 20)); [ -d $d ] || mkdir $d
  echo \"file $i\" > $d/f$i; i=$((i + 1))
done
for f in */*; do printf '%s\\n%s\\n%s\\n' \"$f\" \"$f$f\" 'the same line' >> $f; done
git add .; git commit -q -m one
for f in d3/* d7/*; do echo more >> $f; done
git commit -q -a -m two
git repack -q -a -d -f
git log --stat -M | tail -n +1 | cksum
git rev-parse HEAD
git fsck --full --no-progress
"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_work_is_more_text_and_the_same_work_the_same_text() {
        assert!(super::c(20).len() > super::c(10).len() && super::c(10) == super::c(10));
        assert!(super::cxx(20).len() > super::cxx(10).len());
        assert_ne!(super::sqlite(1), super::sqlite(2));
    }
}
