"""Variables that launchers set in the processes that they start."""

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_NODEID": "0",
         "SLURM_LOCALID": "1", "SLURM_PROCID": "1"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "1", "LOCAL_RANK": "1",
            "GROUP_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # fmt: skip
JSRUN = {"LSB_JOBID": "7", "LSB_DJOB_RANKFILE": "/no/such/file", "JSM_NAMESPACE_LOCAL_RANK": "1",
         "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}  # fmt: skip
