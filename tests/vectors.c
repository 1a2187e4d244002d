/* vectors.c - runs tests/vectors on the model and on every engine of ratelimit.h.
 *
 *     vectors                 words: only cases whose "ENGINE: SENTENCE" or file has one, as
 *                             "model:"
 *     vectors --write         writes what the model says into the files; asks no engine
 *
 * The folder is tests/vectors, or VECTORS in the environment. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "vectors.h"

#include <dirent.h>

/* ---- the model as an engine ------------------------------------------------------------------ */

typedef struct model_map {
    char name[ENGINE_KEYS][2 * VECTOR_TEXT_BYTES];
    model_key key[ENGINE_KEYS];
    size_t count;
} model_map;

static model_map the_model;

static void model_map_reset(void *self)
{
    memset(self, 0, sizeof(model_map));
}

/* Of a key and a scope. */
static model_key *model_map_find(model_map *map, const char *key, const char *scope)
{
    char name[sizeof map->name[0]];
    size_t i;
    snprintf(name, sizeof name, "%s, scope %s", key, scope);
    for (i = 0; i < map->count; i++)
        if (strcmp(map->name[i], name) == 0)
            return &map->key[i];
    if (map->count == ENGINE_KEYS)
        exit(2);
    strcpy(map->name[map->count], name);
    return &map->key[map->count++];
}

static void model_map_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                             ratelimit_result *res)
{
    const vector_line *line = vector_asked;
    bool about = line->about_remaining || line->about_retry || line->about_reset;
    model_decide(model_map_find((model_map *)self, line->key, line->scope), &line->model_limit, req,
                 now_ns, about, res);
}

static engine model_engine(void)
{
    engine e;
    memset(&e, 0, sizeof e);
    e.name = "model";
    e.self = &the_model;
    e.reset = model_map_reset;
    e.decide = model_map_decide;
    return e;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_want(FILE *out, vector_line *line, const engine *model)
{
    char buf[32];
    ratelimit_result res;
    if (line->each_ns) {
        fprintf(out, "allowed %" PRIu64 "\n", vector_count(model, line, 0));
        return;
    }
    vector_ask(model, line, line->at_ns, &res);
    line->want = res;
    fprintf(out, "%s %" PRIu64, vector_word_of(vector_statuses, (int)res.status), res.remaining);
    fprintf(out, " %s", vector_time_text(res.retry_after_ns, buf));
    fprintf(out, " %s", vector_time_text(res.reset_after_ns, buf));
    if (res.taken != vector_taken_by_rule(line))
        fprintf(out, " taken %" PRIu64, res.taken);
    if (res.wait_ns)
        fprintf(out, " wait %s", vector_time_text(res.wait_ns, buf));
    fputc('\n', out);
}

/* The text as it is up to the arrow, the arrow in a column of its own, and what the model says. */
static void write_line(FILE *out, vector_line *line, char *text, const engine *model)
{
    size_t len;
    char *arrow = strstr(text, "->");
    if (arrow)
        *arrow = '\0';
    vector_trim(text);
    len = strlen(text);
    fprintf(out, "%s%*s -> ", text, len < 40 ? (int)(40 - len) : 0, "");
    write_want(out, line, model);
}

static vector_line *line_at(vector_set *set, int number, const engine *model)
{
    size_t i, j;
    for (i = 0; i < set->count; i++) {
        for (j = 0; j < set->the_case[i].count; j++) {
            if (set->the_case[i].line[j].number != number)
                continue;
            if (j == 0)
                model->reset(model->self);
            return &set->the_case[i].line[j];
        }
    }
    return NULL;
}

static char *read_all(const char *file)
{
    static char text[1 << 20];
    size_t got;
    FILE *in = fopen(file, "r");
    if (in == NULL)
        exit(2);
    got = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    if (got == sizeof text - 1)
        vector_stop(file, 0, "too long");
    text[got] = '\0';
    return text;
}

static void write_file(const char *file)
{
    engine model = model_engine();
    vector_set set;
    int number = 0;
    char *text, *end;
    FILE *out;
    memset(&set, 0, sizeof set);
    vectors_read(&set, file, false);
    text = read_all(file);
    out = fopen(file, "w");
    if (out == NULL)
        exit(2);
    for (; *text; text = end + 1) {
        vector_line *line = line_at(&set, ++number, &model);
        end = strchr(text, '\n');
        *end = '\0';
        if (line)
            write_line(out, line, text, &model);
        else
            fprintf(out, "%s\n", text);
    }
    fclose(out);
    vectors_close(&set);
}

static void write_all(void)
{
    char file[VECTOR_TEXT_BYTES];
    size_t i;
    for (i = 0; i < VECTOR_FILES; i++) {
        snprintf(file, sizeof file, "%s/%s", vectors_folder(), vector_files[i]);
        write_file(file);
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static void every_file_in_the_folder_is_run(void)
{
    struct dirent *entry;
    size_t found = 0;
    DIR *dir = opendir(vectors_folder());
    CHECK(dir != NULL);
    while (dir && (entry = readdir(dir)) != NULL)
        found += strstr(entry->d_name, ".txt") != NULL;
    if (dir)
        closedir(dir);
    CHECK_U64(found, VECTOR_FILES);
}

static void count_lines(const vector_set *set)
{
    size_t i, lines = 0;
    for (i = 0; i < set->count; i++)
        lines += set->the_case[i].count;
    printf("%zu cases with %zu lines in %zu files\n", set->count, lines, VECTOR_FILES);
}

int main(int argc, char **argv)
{
    engine all[ENGINES], model = model_engine();
    vector_set set;
    size_t i;
    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        write_all();
        return 0;
    }
    check_begin(argc, argv);
    vectors_open(&set, true);
    count_lines(&set);
    RUN(every_file_in_the_folder_is_run);
    engines_open(all);
    vectors_run(&model, &set);
    for (i = 0; i < ENGINES; i++)
        vectors_run(&all[i], &set);
    engines_close(all);
    vectors_close(&set);
    return check_end();
}
