"""Who works on the shards of a step: processes of this machine, Beam, the hosts of a job."""
