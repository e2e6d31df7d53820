// Transfers between the topics of a bank, each a transaction. Usage: node bank.mjs SERVERS ID FILE
// FILE has a transfer in each line: topic, key and value of three records, separated by tabs.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
const { Kafka, Partitioners, logLevel } = createRequire(process.cwd() + '/')('kafkajs')

const [servers, id, file] = process.argv.slice(2)
const transfers = readFileSync(file, 'utf8').split('\n').filter(line => line).map(line => line.split('\t'))
const kafka = new Kafka({
  brokers: servers.split(','), logLevel: logLevel.NOTHING, requestTimeout: 10_000,
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 5 },
})
let attempts = 0
const run = async (producer, admin) => {
  await Promise.all([producer.connect(), admin.connect()])
  const [{ partitions: [{ offset }] }] = await admin.fetchOffsets({ groupId: id, topics: ['numbers'] })
  for (let number = Math.max(0, Number(offset)); number < transfers.length;) {
    attempts += 1
    const transaction = await producer.transaction()
    const fields = transfers[number]
    for (let leg = 0; leg < fields.length; leg += 3) {
      await transaction.send({ topic: fields[leg], messages: [{ key: fields[leg + 1], value: fields[leg + 2] }] })
    }
    const partitions = [{ partition: 0, offset: `${number + 1}` }]
    await transaction.sendOffsets({ consumerGroupId: id, topics: [{ topic: 'numbers', partitions }] })
    if (attempts % 4 === 0) {
      await transaction.abort()
      continue
    }
    await transaction.commit()
    console.log(`done ${number++}`)
  }
}
for (let done = false; !done;) {
  const admin = kafka.admin()
  const producer = kafka.producer({
    transactionalId: id, idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner,
  })
  try {
    await run(producer, admin)
    done = true
  } catch (error) { // it was committed or not: the group's offset tells
    console.error(`${error}`)
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  await Promise.allSettled([producer.disconnect(), admin.disconnect()])
}
process.exit(0)
