/* A host that loads an output plugin in Go as Fluent Bit does, and does what its standard input says, a command a line:
 *
 *   register LIBRARY
 *   init ID KEY=VALUE...      answers what FLBPluginInit does; values end at a blank
 *   flush ID TAG FILE N       calls FLBPluginFlushCtx N times at once, each with a copy of the file in memory of its own,
 *                             which is overwritten and freed afterwards; answers what each has returned
 *   leave ID TAG FILE N       the same, and calls FLBPluginExitCtx while they are under way
 *   exit ID
 *   unregister
 *   memory                    answers the resident size in KiB
 *
 * Each command is answered by one line. The structures are those of fluent-bit-go's headers.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flb_plugin.h"
#include "flb_output.h"

#define MOST 64

typedef int (*register_fn)(struct flb_plugin_proxy_def *);
typedef void (*unregister_fn)(struct flb_plugin_proxy_def *);
typedef int (*init_fn)(struct flbgo_output_plugin *);
typedef int (*flush_fn)(void *, const void *, size_t, char *);
typedef int (*exit_fn)(void *);

static void *library;
static struct { /* as much room as the engine's own structure has, which has grown */
    struct flb_plugin_proxy_def def;
    char rest[64];
} definition;

struct section {
    int used;
    char *keys[MOST];
    char *values[MOST];
    int size;
    struct flb_plugin_proxy_context context;
    struct flbgo_output_plugin plugin;
};
static struct section sections[MOST];

static char *property(char *key, void *instance)
{
    struct section *s = instance;
    int i;
    for (i = 0; i < s->size; i++) {
        if (strcmp(s->keys[i], key) == 0) {
            return s->values[i];
        }
    }
    return NULL;
}

static struct flb_api api = {property, NULL};

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static int load(const char *path)
{
    library = dlopen(path, RTLD_LAZY);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return ((register_fn) symbol("FLBPluginRegister"))(&definition.def);
}

static int init(struct section *s, char *words)
{
    char *word, *save, *equals;
    memset(s, 0, sizeof(*s));
    for (word = strtok_r(words, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        equals = strchr(word, '=');
        *equals = '\0';
        s->keys[s->size] = strdup(word);
        s->values[s->size++] = strdup(equals + 1);
    }
    s->plugin.api = &api;
    s->plugin.o_ins = (struct flb_output_instance *) s;
    s->plugin.context = &s->context;
    return ((init_fn) symbol("FLBPluginInit"))(&s->plugin);
}

struct call {
    void *context;
    const char *tag;
    const char *chunk;
    size_t size;
    int answer;
};

static void *flush(void *argument)
{
    struct call *c = argument;
    char *chunk = malloc(c->size + 1);
    char *tag = strdup(c->tag);
    memcpy(chunk, c->chunk, c->size);
    c->answer = ((flush_fn) symbol("FLBPluginFlushCtx"))(c->context, chunk, c->size, tag);
    memset(chunk, 0xc1, c->size);
    free(chunk);
    free(tag);
    return NULL;
}

static int leave(struct section *s)
{
    return ((exit_fn) symbol("FLBPluginExitCtx"))(s->context.remote_context);
}

static void flush_all(struct section *s, const char *tag, const char *path, int n, int leaving)
{
    struct call calls[MOST];
    pthread_t threads[MOST];
    char *chunk;
    long size;
    int i;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    chunk = malloc(size + 1);
    if (fread(chunk, 1, size, file) != (size_t) size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    for (i = 0; i < n; i++) {
        calls[i] = (struct call){s->context.remote_context, tag, chunk, size, -1};
        pthread_create(&threads[i], NULL, flush, &calls[i]);
    }
    if (leaving) {
        usleep(2000);
        leave(s);
    }
    for (i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        printf(i > 0 ? " %d" : "%d", calls[i].answer);
    }
    printf("\n");
    free(chunk);
}

static long memory(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) {
            break;
        }
    }
    fclose(status);
    return kib;
}

int main(void)
{
    static char line[1 << 16];
    char tag[256], path[4096], command[16];
    int id, n, words;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        words = 0;
        if (sscanf(line, "%15s", command) != 1) {
            return 1;
        }
        if (sscanf(line, "register %4095s", path) == 1) {
            printf("%d\n", load(path));
        }
        else if (sscanf(line, "init %d %n", &id, &words) == 1 && words > 0) {
            printf("%d\n", init(&sections[id], line + words));
        }
        else if (sscanf(line, "flush %d %255s %4095s %d", &id, tag, path, &n) == 4 && n <= MOST) {
            flush_all(&sections[id], tag, path, n, 0);
        }
        else if (sscanf(line, "leave %d %255s %4095s %d", &id, tag, path, &n) == 4 && n <= MOST) {
            flush_all(&sections[id], tag, path, n, 1);
        }
        else if (sscanf(line, "exit %d", &id) == 1) {
            printf("%d\n", leave(&sections[id]));
        }
        else if (strcmp(command, "unregister") == 0) {
            printf("%s %d %d\n", definition.def.name, definition.def.type, definition.def.proxy);
            ((unregister_fn) symbol("FLBPluginUnregister"))(&definition.def);
        }
        else if (strcmp(command, "memory") == 0) {
            printf("%ld\n", memory());
        }
        else {
            fprintf(stderr, "what is %s?\n", command);
            return 1;
        }
    }
    return 0;
}
