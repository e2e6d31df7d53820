// A day of KafkaJS: what it sees, one line for each step. Usage: node kafkajs.mjs HOST:PORT
import { createRequire } from 'node:module'
const { Kafka, CompressionTypes, logLevel } = createRequire(process.cwd() + '/')('kafkajs')

const PARTITIONS = 4, RECORDS = 200
const kafka = new Kafka({ clientId: 'conformance', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
const topic = `kafkajs-${process.pid}`, group = `group-${process.pid}`
const say = (step, seen) => console.log(`${step}: ${JSON.stringify(seen)}`)
const failure = promise => promise.then(() => 'no error', error => error.type ?? error.cause?.type ?? error.name)

const admin = kafka.admin()
await admin.connect()
say('create a topic', await admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }] }))
say('create it again', await admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }] }))

const record = (number, more = {}) => ({ key: `k${number % 10}`, value: `v${number}`, partition: number % PARTITIONS, ...more })
const numbers = Array.from({ length: RECORDS }, (_, number) => number)
for (const [name, idempotent, compression] of [
  ['plain', false, CompressionTypes.None], ['gzip', false, CompressionTypes.GZIP], ['idempotent', true, CompressionTypes.None],
]) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 })
  await producer.connect()
  const sent = await producer.send({ topic, compression, messages: numbers.map(n => record(n, { headers: { a: `${n}`, b: ['x', 'y'] } })) })
  say(`produce, ${name}`, sent.map(each => [each.partition, each.errorCode, each.baseOffset]).sort())
  await producer.disconnect()
}
say('offsets', (await admin.fetchTopicOffsets(topic)).map(each => [each.partition, each.low, each.high]).sort())
say('offsets after now', (await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() + 60_000)).map(each => [each.partition, each.offset]).sort())

const condition = async (holds, what) => {
  for (let waited = 0; !holds(); waited += 20) {
    if (waited > 60_000) throw new Error(`waited in vain until ${what}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}
const member = async seen => {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6_000, heartbeatInterval: 200 })
  const state = { consumer, partitions: [], joins: 0 }
  consumer.on(consumer.events.GROUP_JOIN, event => {
    state.joins += 1
    state.partitions = event.payload.memberAssignment[topic] ?? []
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 100,
    eachMessage: async ({ partition, message }) => {
      seen.push(`${partition}:${message.offset}:${message.key}:${message.value}:${message.headers.a ?? ''}`)
    },
  })
  return state
}
const all = PARTITIONS, seen = []
const first = await member(seen)
await condition(() => seen.length >= 3 * RECORDS, 'the group has read everything')
say('group of one, records', [seen.length, new Set(seen).size, [...seen].sort()[0]])
const second = await member(seen)
await condition(() => first.partitions.length + second.partitions.length === all && second.partitions.length === all / 2, 'two members share')
say('group of two, partitions', [first.partitions.length, second.partitions.length])
await first.consumer.disconnect()
await condition(() => second.partitions.length === all, 'the second has all partitions')
say('the first has left, partitions', second.partitions.length)
const producer = kafka.producer()
await producer.connect()
await producer.send({ topic, messages: numbers.map(n => record(n + RECORDS)) })
await condition(() => new Set(seen).size >= 4 * RECORDS, 'the new records are read')
await second.consumer.commitOffsets([])
const { groups: [described] } = await admin.describeGroups([group])
say('describe the group', [described.state, described.protocol, described.protocolType, described.members.length])
await second.consumer.disconnect()
say('committed', (await admin.fetchOffsets({ groupId: group, topics: [topic] }))[0].partitions.map(each => [each.partition, each.offset]).sort())
await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '7' }] })
const again = []
const third = await member(again)
await condition(() => again.length >= RECORDS - 7, 'partition 0 is read again')
say('after a reset to 7, first record', again[0].split(':').slice(0, 2))
await third.consumer.disconnect()
say('delete the group', (await admin.deleteGroups([group])).map(each => each.errorCode ?? 0))
await admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: '3' }] })
say('after records were deleted', (await admin.fetchTopicOffsets(topic)).filter(each => each.partition === 1).map(each => [each.low, each.high]))
say('produce to a wrong partition', await failure(producer.send({ topic, messages: [{ value: 'v', partition: 9 }] })))
await producer.disconnect()
await admin.deleteTopics({ topics: [topic] })
say('delete the topic', (await admin.listTopics()).includes(topic))
await admin.disconnect()
