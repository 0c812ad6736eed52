"""The dynamic config keys of brokers, groups and client metrics, and the broker keys that need a restart to change.

The keys are those of Kafka 4.2.0: KafkaConfig, DynamicBrokerConfig.AllDynamicConfigs, GroupConfig,
ClientMetricsConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sediment.engine.config_definitions import BROKER_KEYS, DYNAMIC_BROKER_KEYS, Key, Value, ValueType
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.server.server_config import ServerConfig

_INT, _LONG, _STRING, _LIST = ValueType.INT, ValueType.LONG, ValueType.STRING, ValueType.LIST


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# fmt: off
_OTHERS = (
    Key("max.connection.creation.rate", _INT, INT32_MAX, 0),
    Key("max.connections.per.ip.overrides", _STRING, ""),
    Key("metric.reporters", _LIST, ("org.apache.kafka.common.metrics.JmxReporter",)),
    Key("num.replica.fetchers", _INT, 1, 1),
    Key("config.providers", _LIST, ()),
    Key("remote.fetch.max.wait.ms", _INT, 500, 1),
    Key("remote.list.offsets.request.timeout.ms", _LONG, 30_000, 1),
    Key("remote.log.index.file.cache.total.size.bytes", _LONG, 1_073_741_824, 1),
    Key("remote.log.manager.copier.thread.pool.size", _INT, 10, 1),
    Key("remote.log.manager.copy.max.bytes.per.second", _LONG, INT64_MAX, 1),
    Key("remote.log.manager.expiration.thread.pool.size", _INT, 10, 1),
    Key("remote.log.manager.fetch.max.bytes.per.second", _LONG, INT64_MAX, 1),
    Key("remote.log.manager.follower.thread.pool.size", _INT, 2, 1),
    Key("remote.log.reader.threads", _INT, 10, 1),
)

SECURITY_KEYS = _names(
    """
    ssl.cipher.suites ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type
    """
)
"""Keys of a listener; a client can change them only with the listener's prefix, for example `listener.name.plain.`."""

LISTENER_KEYS = _names(
    """
    listener.security.protocol.map listeners principal.builder.class sasl.enabled.mechanisms sasl.jaas.config
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.mechanism.inter.broker.protocol
    """
)
"""Further keys that a client can change only for one broker."""

READ_ONLY_KEYS = _names(
    """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms advertised.listeners
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name auto.create.topics.enable
    auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.id broker.rack broker.session.timeout.ms
    client.quota.callback.class connection.failed.authentication.delay.ms connections.max.idle.ms
    connections.max.reauth.ms controlled.shutdown.enable controller.listener.names
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
    controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
    create.topic.policy.class.name default.replication.factor delegation.token.expiry.check.interval.ms
    delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
    delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners fetch.max.bytes
    fetch.purgatory.purge.interval.requests group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms group.consumer.max.size
    group.consumer.migration.policy group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
    group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms group.coordinator.append.linger.ms
    group.coordinator.rebalance.protocols group.coordinator.threads group.initial.rebalance.delay.ms
    group.max.session.timeout.ms group.max.size group.min.session.timeout.ms group.share.assignors
    group.share.delivery.count.limit group.share.enable group.share.heartbeat.interval.ms
    group.share.initialize.retry.interval.ms group.share.max.heartbeat.interval.ms
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
    group.share.max.size group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
    group.share.min.session.timeout.ms group.share.partition.max.record.locks group.share.persister.class.name
    group.share.record.lock.duration.ms group.share.session.timeout.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.heartbeat.interval.ms
    group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms group.streams.num.standby.replicas
    group.streams.session.timeout.ms initial.broker.registration.timeout.ms inter.broker.listener.name
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes internal.metadata.max.fetch.size.in.bytes
    kafka.metrics.polling.interval.secs kafka.metrics.reporters leader.imbalance.check.interval.seconds
    log.cleaner.enable log.dir log.dir.failure.timeout.ms log.dirs log.flush.offset.checkpoint.interval.ms
    log.flush.scheduler.interval.ms log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
    log.retention.check.interval.ms log.retention.hours log.retention.minutes log.roll.hours log.roll.jitter.hours
    max.incremental.fetch.session.cache.slots max.request.partition.size.limit metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes
    metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
    metrics.num.samples metrics.recording.level metrics.sample.window.ms node.id num.partitions
    num.replica.alter.log.dirs.threads offset.metadata.max.bytes offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.compression.codec
    offsets.topic.num.partitions offsets.topic.replication.factor offsets.topic.segment.bytes process.roles
    producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests queued.max.request.bytes
    queued.max.requests quota.window.num quota.window.size.seconds remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
    remote.log.storage.manager.class.name remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
    replica.fetch.response.max.bytes replica.fetch.wait.max.ms replica.high.watermark.checkpoint.interval.ms
    replica.lag.time.max.ms replica.selector.class replica.socket.receive.buffer.bytes replica.socket.timeout.ms
    replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms
    sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class sasl.server.max.receive.size
    security.inter.broker.protocol security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
    share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
    share.coordinator.state.topic.prune.interval.ms share.coordinator.state.topic.replication.factor
    share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes socket.request.max.bytes
    socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes ssl.principal.mapping.rules
    telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.num.partitions transaction.state.log.replication.factor
    transaction.state.log.segment.bytes transaction.two.phase.commit.enable transactional.id.expiration.ms
    unclean.leader.election.interval.ms unstable.api.versions.enable unstable.feature.versions.enable
    """
)
"""Keys that no client can change."""
# fmt: on

DYNAMIC_KEYS: Mapping[str, Key] = MappingProxyType(
    {name: BROKER_KEYS[name] for name in sorted(DYNAMIC_BROKER_KEYS)} | {key.name: key for key in _OTHERS}
)
"""The keys that a client can change for one broker or for all, by name."""

MOVE_LIMIT_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"

QUOTA_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        name: Key(name, _LONG, INT64_MAX, 0)
        for name in ("leader.replication.throttled.rate", "follower.replication.throttled.rate", MOVE_LIMIT_KEY)
    }
)
"""Replication limits, which can be set only as dynamic broker configs (Kafka's QuotaConfig.brokerQuotaConfigs)."""

GROUP_KINDS = ("consumer", "share", "streams")
"""The kinds of groups whose members have sessions; each kind has its own keys."""

GROUP_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        *(Key(f"{kind}.heartbeat.interval.ms", _INT, 5_000, 1) for kind in GROUP_KINDS),
        *(Key(f"{kind}.session.timeout.ms", _INT, 45_000, 1) for kind in GROUP_KINDS),
        Key("share.auto.offset.reset", _STRING, "latest"),
        Key("share.isolation.level", _STRING, "read_uncommitted", one_of=("read_committed", "read_uncommitted")),
        Key("share.record.lock.duration.ms", _INT, 30_000, 1_000),
        Key("streams.initial.rebalance.delay.ms", _INT, 3_000, 0),
        Key("streams.num.standby.replicas", _INT, 0, 0),
    )
}
"""The configs of groups."""


def group_config_defaults(server: ServerConfig) -> Mapping[str, Value]:
    return {
        **{key.name: key.default for key in GROUP_KEYS.values() if key.default is not None},
        "consumer.heartbeat.interval.ms": server.group_consumer_heartbeat_interval_ms,
        "consumer.session.timeout.ms": server.group_consumer_session_timeout_ms,
    }


CLIENT_METRICS_KEYS: Mapping[str, Key] = {
    key.name: key for key in (Key("interval.ms", _INT, 300_000), Key("match", _LIST, ()), Key("metrics", _LIST, ()))
}
"""The configs of a client metrics subscription."""
