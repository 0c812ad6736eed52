"""Writers of the cluster metadata of a node that this process owns."""
