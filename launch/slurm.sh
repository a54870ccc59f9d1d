#!/bin/bash
# One run on several machines of a Slurm cluster, one process per machine; all of them see the workdir:
#   sbatch --nodes=4 --time=4:00:00 --array=1-8%1 launch/slurm.sh \
#       --config=configs/gpt_base_knn.py --workdir=/shared/runs/gpt_base
# One job of the array runs at a time and continues where the last one stopped, whether by its time
# limit, by pre-emption or by a lost machine; when the run is complete, the rest end at once.
# `python` is that of the environment in which you run the command.
#SBATCH --job-name=icl_jax
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@180
#SBATCH --output=icl_jax-%A_%a.log
exec srun python -u -m icl_jax.main "$@"
