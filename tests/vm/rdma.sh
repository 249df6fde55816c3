# What runs in the guest, on its two software RDMA devices: pairs of a name and a program, from `cargo xtask vm`.
set -euo pipefail
declare -A built=()
while [ $# -gt 0 ]; do built[$1]=$2; shift 2; done

# From here on a test that finds no device fails instead of skipping.
export TOMBOLO_RDMA=1

step() { printf '\n[%3d s] %s\n' "$SECONDS" "$*"; }

step "conformance on $(rdma link | sed -n 's/^link \([^ ]*\).*/\1/p' | paste -sd ' ')"
"${built[conformance]}" ibverbs:: --test-threads 1

step "processes that die, stop, or come uninvited; limits; a cut cable"
# Only here may a test pull a cable.
export TOMBOLO_RDMA_CUT=rdma0
"${built[ibverbs]}" --test-threads 1

step "nothing is left"
"${built[leaks]}"

step "a reduce among four processes"
"${built[reduce]}" ibverbs --nocapture --test-threads 1

# The same federation, one process a node, over both fabrics: the same model, bit for bit.
model() {
    mkdir "$folder/$1"
    sed "s/FABRIC/$1/" tests/vm/federation.toml >"$folder/$1/topology.toml"
    "${built[tombolo]}" run "$folder/$1/topology.toml" --processes --format json >"$folder/$1/out" || {
        cat "$folder/$1/out"
        return 1
    }
    grep -o '"event":"fabric".*' "$folder/$1/out" >&2 || true
    tail -n 1 "$folder/$1/out" | grep -o '"model_hash":"[0-9a-f]*"'
}
step "a federation over shared memory"
folder=$(mktemp -d)
over_shm=$(model shm)
step "the same over the RDMA device"
over_rdma=$(model ibverbs)
printf 'shm:     %s\nibverbs: %s\n' "$over_shm" "$over_rdma"
[ "$over_shm" = "$over_rdma" ] || { echo "the models differ"; exit 1; }

step "auto takes the device where a domain has two machines"
printf '[federation]\nname = "auto"\n[[domain]]\nname = "plant"\n' >"$folder/auto.toml"
for i in 1 2; do
    printf '[[domain.node]]\nname = "n%d"\nlisten = "10.98.0.%d:7000"\n' $i $i
done >>"$folder/auto.toml"
"${built[tombolo]}" check "$folder/auto.toml" | tee "$folder/said"
grep -q '^the fabric of plant is ibverbs: its nodes are on 2 machines; rxe0 port 1, address 10.98.0.1' "$folder/said"

step "all of it holds"
