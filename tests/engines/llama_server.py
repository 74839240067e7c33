"""Serve a GGUF model by llama.cpp (`xllamacpp`) on a free port: MODEL [DRAFTS [DRAFTER]].

DRAFTS is `plain`, `draft` or `ngram`. It prints its address once it serves, and ends with stdin.
"""

import sys

from xllamacpp import CommonParams, Server, common_speculative_type


def main(model: str, drafts: str = "plain", drafter: str = "", slots: str = "2") -> None:
    params = CommonParams()
    params.model.path, params.model_alias = model, ["target"]
    params.n_ctx, params.n_parallel, params.warmup = 2048, int(slots), False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics, params.port = True, 0
    if drafts == "draft":
        params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = drafter or model
        params.speculative.draft.n_max = 4
        params.speculative.draft.cpuparams.n_threads = 1
    elif drafts == "ngram":
        params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


main(*sys.argv[1:])
