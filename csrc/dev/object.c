/* object: loads a relocatable ELF object into executable memory, for the life of the process. Supports what LLVM emits
 * for a kernel in the large code model: sections, and absolute addresses of sections and external functions
 * (R_X86_64_64). Refuses anything else, and checks all sizes and offsets, as the object may come from disk. */
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dev.h"

enum { MAX_SECTIONS = 64 };

typedef struct Object {
    const char *at;
    size_t n;
    const Elf64_Shdr *section;
    int n_sections;
    const Elf64_Sym *symbol;
    size_t n_symbols;
    const char *names; /* the symbols' string table; ends with 0 */
    size_t n_names;
    size_t place[MAX_SECTIONS]; /* offsets of the loaded sections in `memory` */
    char *memory;
    size_t bytes;
} Object;

static bool inside(const Object *o, uint64_t at, uint64_t n) { return at <= o->n && n <= o->n - at; }
static bool loaded(const Elf64_Shdr *s) { return s->sh_flags & SHF_ALLOC; }

static bool find_sections(Object *o) {
    const Elf64_Ehdr *h = (const void *)o->at;
    if (o->n < sizeof *h || (uintptr_t)o->at % 8 || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 ||
        h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_type != ET_REL || h->e_machine != EM_X86_64 ||
        h->e_shentsize != sizeof *o->section || h->e_shnum > MAX_SECTIONS || h->e_shoff % 8 ||
        !inside(o, h->e_shoff, h->e_shnum * sizeof *o->section))
        return false;
    o->section = (const void *)(o->at + h->e_shoff);
    o->n_sections = h->e_shnum;
    for (int i = 0; i < o->n_sections; i++) {
        const Elf64_Shdr *s = &o->section[i];
        if (s->sh_type != SHT_NOBITS && s->sh_type != SHT_NULL && !inside(o, s->sh_offset, s->sh_size)) return false;
        if (s->sh_type != SHT_SYMTAB) continue;
        if (o->symbol || s->sh_offset % 8 || s->sh_link >= (unsigned)o->n_sections) return false;
        const Elf64_Shdr *names = &o->section[s->sh_link];
        o->symbol = (const void *)(o->at + s->sh_offset);
        o->n_symbols = s->sh_size / sizeof *o->symbol;
        o->names = o->at + names->sh_offset;
        o->n_names = names->sh_size;
        if (names->sh_type != SHT_STRTAB || !inside(o, names->sh_offset, names->sh_size) || !o->n_names ||
            o->names[o->n_names - 1])
            return false;
    }
    return o->symbol != NULL;
}

static bool load_sections(Object *o) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < o->n_sections; i++) {
        const Elf64_Shdr *s = &o->section[i];
        const size_t align = s->sh_addralign ? s->sh_addralign : 1;
        if (!loaded(s)) continue;
        if (s->sh_size > (1 << 28) || align > page || (align & (align - 1)) || s->sh_flags & SHF_TLS) return false;
        o->place[i] = (o->bytes + align - 1) / align * align;
        o->bytes = o->place[i] + s->sh_size;
    }
    if (!o->bytes) return false;
    o->memory = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (o->memory == MAP_FAILED) return false;
    for (int i = 0; i < o->n_sections; i++)
        if (loaded(&o->section[i]) && o->section[i].sh_type != SHT_NOBITS)
            memcpy(o->memory + o->place[i], o->at + o->section[i].sh_offset, o->section[i].sh_size);
    return true;
}

static const char *name_of(const Object *o, const Elf64_Sym *s) {
    return s->st_name < o->n_names ? o->names + s->st_name : "";
}

/* The symbol's address; 0: unresolved. */
static uint64_t address_of(const Object *o, uint64_t symbol) {
    if (symbol >= o->n_symbols) return 0;
    const Elf64_Sym *s = &o->symbol[symbol];
    if (s->st_shndx == SHN_UNDEF) {
        void *vector = cc_cpu_vector_function(name_of(o, s));
        return (uintptr_t)(vector ? vector : cc_dl_symbol(NULL, name_of(o, s)));
    }
    if (s->st_shndx >= o->n_sections || !loaded(&o->section[s->st_shndx]) ||
        s->st_value > o->section[s->st_shndx].sh_size)
        return 0;
    return (uintptr_t)o->memory + o->place[s->st_shndx] + s->st_value;
}

static bool relocate(const Object *o, const Elf64_Shdr *table) {
    if (table->sh_info >= (unsigned)o->n_sections || table->sh_offset % 8) return false;
    const Elf64_Shdr *target = &o->section[table->sh_info];
    if (!loaded(target)) return true;
    const Elf64_Rela *r = (const void *)(o->at + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof *r; i++) {
        const uint64_t address = address_of(o, ELF64_R_SYM(r[i].r_info)), value = address + (uint64_t)r[i].r_addend;
        if (!address || ELF64_R_TYPE(r[i].r_info) != R_X86_64_64 || target->sh_size < sizeof value ||
            r[i].r_offset > target->sh_size - sizeof value)
            return false;
        memcpy(o->memory + o->place[table->sh_info] + r[i].r_offset, &value, sizeof value);
    }
    return true;
}

static bool relocate_all(const Object *o) {
    for (int i = 0; i < o->n_sections; i++) {
        const int type = (int)o->section[i].sh_type;
        if (type == SHT_REL || (type == SHT_RELA && !relocate(o, &o->section[i]))) return false;
    }
    return mprotect(o->memory, o->bytes, PROT_READ | PROT_EXEC) == 0;
}

void *cc_object_load(const CcBlob *blob, const char *name) {
    Object o = {.at = blob->at, .n = blob->n, .memory = MAP_FAILED};
    if (find_sections(&o) && load_sections(&o) && relocate_all(&o))
        for (size_t i = 0; i < o.n_symbols; i++)
            if (o.symbol[i].st_shndx != SHN_UNDEF && strcmp(name_of(&o, &o.symbol[i]), name) == 0 && address_of(&o, i))
                return (void *)(uintptr_t)address_of(&o, i);
    if (o.memory != MAP_FAILED) munmap(o.memory, o.bytes);
    return NULL;
}
