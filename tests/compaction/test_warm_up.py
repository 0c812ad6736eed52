import subprocess
import sys

from sediment.compaction import exact_keys
from sediment.compaction.kernels.fill_map import fill_map
from sediment.compaction.kernels.scan_chunk import scan_chunk
from sediment.compaction.kernels.sweep import emit_compressed, sweep_chunk
from sediment.compaction.reencode.reencode_kernels import reencode_batches
from sediment.compaction.rewrite.key_matches import match_keys
from sediment.compaction.rewrite.rewrite_kernels import rewrite_batches
from sediment.compaction.warm_up import warm_up


def test_warming_up_compiles_every_kernel_of_the_sweep():
    warm_up()
    for kernel in (scan_chunk, sweep_chunk, fill_map, emit_compressed):
        assert kernel.signatures, kernel
    warm_up(everything=True)
    for kernel in (exact_keys.prove_chunk, rewrite_batches, reencode_batches, match_keys):
        assert kernel.signatures, kernel


def test_warming_up_leaves_pyarrow_and_pandas_to_the_workers():
    program = (
        "import sys; from sediment.compaction.warm_up import warm_up; warm_up();"
        "assert not {'pyarrow', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
