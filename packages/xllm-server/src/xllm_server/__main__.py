"""`python -m xllm_server` is `xllm-server`."""

from xllm_server.cli import main

main()
