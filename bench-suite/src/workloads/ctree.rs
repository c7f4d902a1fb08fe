//! A small C program, generated: what kernbench compiles and what the foreground job of contest parses.
//!
//! The same number of modules gives the same files, byte for byte. Each module has a header with structures and a
//! source with lists, a hash table, a state machine and arithmetic; `main.c` calls all of them and prints a checksum,
//! which [`Tree::checksum`] knows without running it.

use crate::rng::Rng;
use std::fmt::Write as _;

/// A file of the tree.
pub struct File {
    /// Its name, without a directory.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The whole tree.
pub struct Tree {
    /// The files; sources end in `.c`.
    pub files: Vec<File>,
    /// What the program prints.
    pub checksum: u32,
}

/// Arithmetic functions of a module.
const FUNCTIONS: usize = 12;
/// Steps of such a function.
const STEPS: usize = 16;

/// One step of generated arithmetic, in C and in Rust.
#[derive(Clone, Copy)]
enum Step {
    Multiply(u32),
    Add(u32),
    Xor(u32),
    Fold(u32),
}

impl Step {
    fn random(rng: &mut Rng) -> Self {
        let constant = rng.next_u64() as u32;
        match rng.below(4) {
            0 => Self::Multiply(constant | 1),
            1 => Self::Add(constant),
            2 => Self::Xor(constant),
            _ => Self::Fold(constant % 31 + 1),
        }
    }

    fn apply(self, x: u32) -> u32 {
        match self {
            Self::Multiply(c) => x.wrapping_mul(c),
            Self::Add(c) => x.wrapping_add(c),
            Self::Xor(c) => x ^ c,
            Self::Fold(bits) => x ^ (x >> bits),
        }
    }

    fn c(self) -> String {
        match self {
            Self::Multiply(c) => format!("x *= {c}u;"),
            Self::Add(c) => format!("x += {c}u;"),
            Self::Xor(c) => format!("x ^= {c}u;"),
            Self::Fold(bits) => format!("x ^= x >> {bits};"),
        }
    }
}

/// A tree of `modules` modules: twice as many files, and two more.
pub fn generate(modules: usize) -> Tree {
    let mut rng = Rng::new(0x6b65_726e_6265_6e63);
    let mut files = Vec::with_capacity(2 * modules + 2);
    let mut checksum = 0u32;
    for module in 0..modules {
        files.push(header(module));
        let (text, result) = source(module, &mut rng);
        checksum = checksum.rotate_left(5) ^ result;
        files.push(File {
            name: format!("mod{module}.c"),
            text,
        });
    }
    files.push(File {
        name: "common.h".to_owned(),
        text: COMMON.to_owned(),
    });
    files.push(main_source(modules));
    Tree { files, checksum }
}

const COMMON: &str = "#ifndef COMMON_H\n#define COMMON_H\n\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n\
struct list {\n\tstruct list *next;\n\tunsigned key;\n\tchar name[24];\n};\n\n\
static inline unsigned rotate(unsigned x, unsigned bits)\n{\n\treturn x << bits | x >> (32 - bits);\n}\n\n#endif\n";

fn header(module: usize) -> File {
    let mut text =
        format!("#ifndef MOD{module}_H\n#define MOD{module}_H\n\n#include \"common.h\"\n\n");
    let _ = write!(
        text,
        "struct mod{module}_table {{\n\tunsigned used;\n\tstruct list *buckets[{}];\n}};\n\n",
        16 + module % 5
    );
    let _ = write!(
        text,
        "struct list *mod{module}_insert(struct mod{module}_table *table, unsigned key);\n\
         unsigned mod{module}_free(struct mod{module}_table *table);\n\
         unsigned mod{module}_run(unsigned seed);\n\n#endif\n"
    );
    File {
        name: format!("mod{module}.h"),
        text,
    }
}

/// A module's source, and what its run function returns for its own number.
fn source(module: usize, rng: &mut Rng) -> (String, u32) {
    let mut text =
        format!("/* Module {module} of a generated tree. */\n#include \"mod{module}.h\"\n\n");
    let buckets = 16 + module % 5;
    let _ = write!(
        text,
        "struct list *mod{module}_insert(struct mod{module}_table *table, unsigned key)\n{{\n\
         \tstruct list *item = calloc(1, sizeof(*item));\n\n\tif (!item)\n\t\texit(2);\n\titem->key = key;\n\
         \tsnprintf(item->name, sizeof(item->name), \"item-%u\", key);\n\
         \titem->next = table->buckets[key % {buckets}];\n\ttable->buckets[key % {buckets}] = item;\n\
         \ttable->used++;\n\treturn item;\n}}\n\n\
         unsigned mod{module}_free(struct mod{module}_table *table)\n{{\n\tunsigned freed = 0;\n\n\
         \tfor (unsigned i = 0; i < {buckets}; i++) {{\n\t\twhile (table->buckets[i]) {{\n\
         \t\t\tstruct list *next = table->buckets[i]->next;\n\n\t\t\tfree(table->buckets[i]);\n\
         \t\t\ttable->buckets[i] = next;\n\t\t\tfreed++;\n\t\t}}\n\t}}\n\treturn freed;\n}}\n\n"
    );
    let mut value = module as u32;
    for function in 0..FUNCTIONS {
        let _ = write!(
            text,
            "static unsigned step_{module}_{function}(unsigned x)\n{{\n"
        );
        for _ in 0..STEPS {
            let step = Step::random(rng);
            value = step.apply(value);
            let _ = writeln!(text, "\t{}", step.c());
        }
        text.push_str("\treturn x;\n}\n\n");
    }
    let _ = write!(
        text,
        "static const char *state_{module}(unsigned state)\n{{\n\tswitch (state) {{\n"
    );
    for state in 0..24 {
        let _ = writeln!(
            text,
            "\tcase {state}:\n\t\treturn \"module {module}: state {state} of the machine, word {:08x}\";",
            rng.next_u64() as u32
        );
    }
    let _ = write!(
        text,
        "\t}}\n\treturn \"\";\n}}\n\nunsigned mod{module}_run(unsigned seed)\n{{\n\
         \tstruct mod{module}_table table;\n\tunsigned x = seed;\n\n\tmemset(&table, 0, sizeof(table));\n"
    );
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "\tx = step_{module}_{function}(x);");
    }
    let items = 20 + module as u32;
    let _ = write!(
        text,
        "\tfor (unsigned i = 0; i < {items}; i++)\n\t\tmod{module}_insert(&table, x + i);\n\
         \tx += mod{module}_free(&table);\n\tfor (unsigned i = 0; i < 24; i++)\n\
         \t\tx += state_{module}(i)[0] == 'm';\n\treturn x;\n}}\n"
    );
    (text, value.wrapping_add(items).wrapping_add(24))
}

fn main_source(modules: usize) -> File {
    let mut text = String::new();
    for module in 0..modules {
        let _ = writeln!(text, "#include \"mod{module}.h\"");
    }
    text.push_str("\nint main(void)\n{\n\tunsigned sum = 0;\n\n");
    for module in 0..modules {
        let _ = writeln!(text, "\tsum = rotate(sum, 5) ^ mod{module}_run({module});");
    }
    text.push_str("\tprintf(\"%u\\n\", sum);\n\treturn 0;\n}\n");
    File {
        name: "main.c".to_owned(),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_same_tree_every_time() {
        let (a, b) = (generate(3), generate(3));
        assert_eq!(a.files.len(), 8);
        assert_eq!(a.checksum, b.checksum);
        assert!(a.files.iter().zip(&b.files).all(|(a, b)| a.text == b.text));
    }

    #[test]
    fn the_program_prints_the_checksum() {
        let directory = tempfile::tempdir().unwrap();
        let tree = generate(3);
        let mut compiler = Command::new("cc");
        compiler
            .current_dir(directory.path())
            .args(["-Wall", "-Werror", "-o", "program"]);
        for file in &tree.files {
            std::fs::write(directory.path().join(&file.name), &file.text).unwrap();
            if file.name.ends_with(".c") {
                compiler.arg(&file.name);
            }
        }
        assert!(compiler.status().expect("a C compiler").success());
        let output = Command::new(directory.path().join("program"))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{}\n", tree.checksum)
        );
    }
}
