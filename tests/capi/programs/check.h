/* Checks for the test programs: a failing one prints its line and ends the program with exit code 1. */
#ifndef XLLM_TESTS_CHECK_H_
#define XLLM_TESTS_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xllm/xllm.h>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, xllm_last_error()); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* The call has this status, and a message unless it is XLLM_OK. */
#define CHECK_STATUS(call, expected)                                                        \
    do {                                                                                    \
        const xllm_status status_ = (call);                                                 \
        if (status_ != (expected) || (status_ != XLLM_OK && *xllm_last_error() == '\0')) {  \
            fprintf(stderr, "%s:%d: %s is %s (%s), not %s\n", __FILE__, __LINE__, #call,    \
                    xllm_status_name(status_), xllm_last_error(), #expected);               \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* The message of the last failed call names this. */
#define CHECK_MESSAGE(part) CHECK(strstr(xllm_last_error(), (part)) != NULL)

#endif
