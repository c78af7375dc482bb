/* Starts an engine, prints its process id, and is killed. A forked child lives on for a while with copies of all
 * descriptors but standard output. */
#include <signal.h>
#include <unistd.h>

#include "check.h"

int main(void) {
    xllm_engine *engine = NULL;
    const xllm_engine_info *info = NULL;
    CHECK_STATUS(xllm_engine_create(NULL, &engine), XLLM_OK);
    CHECK_STATUS(xllm_engine_get_info(engine, &info), XLLM_OK);
    printf("%lld\n", (long long)info->process_id);
    fflush(stdout);
    if (fork() == 0) {
        close(STDOUT_FILENO);
        close(STDERR_FILENO);
        sleep(10);
        _exit(0);
    }
    raise(SIGKILL);
    return 1;
}
